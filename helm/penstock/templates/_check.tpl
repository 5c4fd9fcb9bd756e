{{/* What a JSON Schema cannot say, each with the place of the value. */}}
{{- define "penstock.check" -}}
{{- $root := . -}}
{{- $full := include "penstock.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$" $full) -}}
{{- fail (printf "the objects of this release would be called %s, which no Service may be; set fullnameOverride to a name of small letters, digits and hyphens that begins with a letter" $full) -}}
{{- end -}}
{{- if eq (int .Values.service.dataPort) (int .Values.service.metricsPort) -}}
{{- fail (printf "service.dataPort and service.metricsPort are both %d; a node listens on two ports" (int .Values.service.dataPort)) -}}
{{- end -}}
{{- $names := dict -}}
{{- range $index, $group := .Values.loaderGroups -}}
{{- $at := printf "loaderGroups[%d] (%s)" $index $group.name -}}
{{- if hasKey $names $group.name -}}
{{- fail (printf "%s: the name is also that of loaderGroups[%d]; each group has its own" $at (int (get $names $group.name))) -}}
{{- end -}}
{{- $_ := set $names $group.name $index -}}
{{- $name := include "penstock.groupName" (dict "root" $root "group" $group) -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "%s: its StatefulSet would be called %s, which has %d characters of at most 52; shorten the group's name, or set fullnameOverride" $at $name (len $name)) -}}
{{- end -}}
{{- with $group.autoscaling -}}
{{- if gt (int (.minReplicas | default 1)) (int .maxReplicas) -}}
{{- fail (printf "%s: autoscaling.minReplicas is %d and autoscaling.maxReplicas %d; there are at least as many as at most" $at (int (.minReplicas | default 1)) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- $length := len (include "penstock.jobFile" (dict "root" $root "group" $group)) -}}
{{- if gt $length 1048576 -}}
{{- fail (printf "%s: its job file has %d bytes, of at most 1048576 that a ConfigMap holds; keep items in files that its sources name" $at $length) -}}
{{- end -}}
{{- range $job, $keys := $group.jobs -}}
{{- include "penstock.exact" (dict "value" $keys "at" (printf "loaderGroups[%d].jobs.%s" $index $job)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes {value, at}: refuse what Helm has changed while it read the values: it would be another log. */}}
{{- define "penstock.exact" -}}
{{- if kindIs "map" .value -}}
{{- $at := .at -}}
{{- range $key, $value := .value -}}
{{- if or (eq $key "true") (eq $key "false") -}}
{{- fail (printf "%s.%s: Helm reads the keys y, n, yes, no, on and off as true and false; put them in quotes, or give the job file as text (jobFile), which it does not read" $at $key) -}}
{{- end -}}
{{- include "penstock.exact" (dict "value" $value "at" (printf "%s.%s" $at $key)) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- $at := .at -}}
{{- range $index, $value := .value -}}
{{- include "penstock.exact" (dict "value" $value "at" (printf "%s[%d]" $at $index)) -}}
{{- end -}}
{{- else if or (kindIs "float64" .value) (kindIs "int64" .value) (kindIs "int" .value) -}}
{{- if or (gt (float64 .value) 9007199254740991.0) (lt (float64 .value) -9007199254740991.0) -}}
{{- fail (printf "%s: Helm rounds numbers beyond 2^53; give the job file as text (jobFile), which it does not read" .at) -}}
{{- end -}}
{{- end -}}
{{- end -}}
