{{/* Of every container: nothing that a node does not need. */}}
{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Takes {root, group, at}: requests equal limits in memory; CPU has no limit, which would only stall. */}}
{{- define "penstock.resources" -}}
{{- $limit := include "penstock.memory" . -}}
{{- $requests := dict "memory" $limit -}}
{{- include "penstock.checkResources" . -}}
{{- $most := dig "limits" "cpu" "" (.group.resources | default dict) -}}
{{- if ne (toString .group.workers) "auto" -}}
{{- $_ := set $requests "cpu" .group.workers -}}
{{- if $most -}}
{{- if gt (float64 .group.workers) (include "penstock.cpus" $most | float64) -}}
{{- $_ = set $requests "cpu" $most -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $ours := dict "requests" $requests "limits" (dict "memory" $limit) -}}
{{- $all := mergeOverwrite $ours (deepCopy (.group.resources | default dict)) -}}
{{- range $part := list "requests" "limits" -}}
{{- range $name, $amount := get $all $part | default dict -}}
{{- $_ := set (get $all $part) $name (include "penstock.amount" $amount) -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Takes {group, ours}: a user's variables, and of ours those that they do not give: each is there once. */}}
{{- define "penstock.groupEnv" -}}
{{- $given := dict -}}
{{- range .group.env -}}{{- $_ := set $given .name true -}}{{- end -}}
{{- $all := list -}}
{{- range $name, $value := .ours -}}
{{- if not (hasKey $given $name) -}}{{- $all = append $all (dict "name" $name "value" $value) -}}{{- end -}}
{{- end -}}
{{- with concat $all (.group.env | default list) -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* Takes {root, group, at}: settings as variables, which win over those of a job file. */}}
{{- define "penstock.env" -}}
{{- $server := include "penstock.server" . | fromJson -}}
{{- $_ := set $server "ready_bytes" (include "penstock.readyBytes" .) -}}
{{- $_ = set $server "workers" .group.workers -}}
{{- $_ = set $server "listen" (printf "0.0.0.0:%d" (int .root.Values.service.dataPort)) -}}
{{- $_ = set $server "metrics" (printf "0.0.0.0:%d" (int .root.Values.service.metricsPort)) -}}
{{- if not .root.Values.store.existingSecret -}}
{{- $_ = set $server "store" "sqlite:////data/penstock.db" -}}
{{- end -}}
{{- $_ = set $server "hash_cache" "/data/files" -}}
{{- range $name, $value := $server -}}
- name: PENSTOCK_{{ upper $name }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{ end -}}
{{ with .root.Values.store.existingSecret -}}
# Its address has a password in it: it is in no argument and in no ConfigMap.
- name: PENSTOCK_STORE
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.root.Values.store.secretKey }}}}
{{ end -}}
# What a node is called, wherever it runs.
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{ include "penstock.securityEnv" .root }}
{{ include "penstock.groupEnv" (dict "group" .group "ours" (dict "HOME" "/tmp" "HF_HOME" "/data/huggingface")) }}
{{- end -}}
