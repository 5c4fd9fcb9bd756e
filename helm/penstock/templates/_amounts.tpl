{{/* Takes {value, at}: bytes of "1.5 GiB", "512Mi" or 1000, as a whole number. */}}
{{- define "penstock.bytes" -}}
{{- $text := toString .value -}}
{{- if not (kindIs "string" .value) -}}{{- $text = printf "%.0f" (float64 .value) -}}{{- end -}}
{{- if not (regexMatch "^ *[0-9]+([.][0-9]+)? *([kKMGT]i?[bB]?|[bB]?) *$" $text) -}}
{{- fail (printf "%s: %s is not an amount of memory, such as 2 GiB or 512Mi" .at (toJson .value)) -}}
{{- end -}}
{{- $unit := regexReplaceAll "[^A-Za-z]" $text "" | upper | trimSuffix "B" -}}
{{- $factors := dict "" 1 "K" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "KI" 1024 "MI" 1048576 "GI" 1073741824 "TI" 1099511627776 -}}
{{- $number := regexFind "[0-9]+([.][0-9]+)?" $text | float64 -}}
{{- printf "%.0f" (floor (mulf $number (get $factors $unit))) -}}
{{- end -}}

{{/* Takes {root, group, at}: the memory limit of a node. */}}
{{- define "penstock.memory" -}}
{{- $limit := dig "limits" "memory" "" (.group.resources | default dict) -}}
{{- if $limit -}}
{{- include "penstock.amount" $limit -}}
{{- else if .group.stalledMiB -}}
{{- printf "%.0fMi" (ceil (mulf 1.25 (float64 .group.stalledMiB))) -}}
{{- else -}}
{{- fail (printf "%s: give stalledMiB, which `penstockd check` prints as \"memory where readers stall\", or resources.limits.memory" .at) -}}
{{- end -}}
{{- end -}}

{{/* A quantity as text: server-side apply takes no number for one. */}}
{{- define "penstock.amount" -}}
{{- ternary . (toJson .) (kindIs "string" .) -}}
{{- end -}}

{{/* Takes {value, at}: refuse what Kubernetes does not take for an amount of memory or of CPUs. */}}
{{- define "penstock.quantity" -}}
{{- $text := toString .value -}}
{{- if not (or (kindIs "float64" .value) (kindIs "int64" .value) (kindIs "int" .value) (regexMatch "^([0-9]+([.][0-9]*)?|[.][0-9]+)(m|k|[MGT]|[KMGT]i)?$" $text)) -}}
{{- fail (printf "%s: %s is not a quantity of Kubernetes, such as 512Mi or 3Gi of memory, 2 or 1500m of CPU" .at (toJson .value)) -}}
{{- end -}}
{{- end -}}

{{/* Takes a quantity of CPUs: their number. */}}
{{- define "penstock.cpus" -}}
{{- $text := toString . -}}
{{- ternary (divf (trimSuffix "m" $text | float64) 1000.0) (float64 $text) (hasSuffix "m" $text) -}}
{{- end -}}

{{/* Takes {root, group, at}: requests above limits, with which Kubernetes takes the set and no Pod of it. */}}
{{- define "penstock.checkResources" -}}
{{- $at := .at -}}
{{- $resources := .group.resources | default dict -}}
{{- range $part := list "requests" "limits" -}}
{{- range $name := list "cpu" "memory" -}}
{{- with dig $part $name "" $resources -}}
{{- include "penstock.quantity" (dict "value" . "at" (printf "%s: resources.%s.%s" $at $part $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $above := "%s: resources.requests.%s is %v and resources.limits.%s %v: no Pod could start; lower the one or raise the other" -}}
{{- $asked := dig "requests" "cpu" "" $resources -}}
{{- $most := dig "limits" "cpu" "" $resources -}}
{{- if and $asked $most -}}
{{- if gt (include "penstock.cpus" $asked | float64) (include "penstock.cpus" $most | float64) -}}
{{- fail (printf $above $at "cpu" $asked "cpu" $most) -}}
{{- end -}}
{{- end -}}
{{- with dig "requests" "memory" "" $resources -}}
{{- if gt (include "penstock.bytes" (dict "value" . "at" (printf "%s: resources.requests.memory" $at)) | int64) (include "penstock.memoryLimit" $ | int64) -}}
{{- fail (printf $above $at "memory" . "memory" (include "penstock.memory" $)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The same in bytes. */}}
{{- define "penstock.memoryLimit" -}}
{{- include "penstock.bytes" (dict "value" (include "penstock.memory" .) "at" (printf "%s.resources.limits.memory" .at)) -}}
{{- end -}}

{{/* Takes {root, group, at}: bytes of batches that may be ready; `auto` is what a node of that memory takes. */}}
{{- define "penstock.readyBytes" -}}
{{- $server := include "penstock.server" . | fromJson -}}
{{- $limit := include "penstock.memoryLimit" . | int64 -}}
{{- if eq (toString $server.ready_bytes) "auto" -}}
{{- min (max (div $limit 4) 67108864) 17179869184 -}}
{{- else -}}
{{- $ready := include "penstock.bytes" (dict "value" $server.ready_bytes "at" (printf "%s: server.ready_bytes" .at)) | int64 -}}
{{- if ge $ready $limit -}}
{{- fail (printf "%s: server.ready_bytes is %d bytes, and the memory limit %d: the node would be killed before so much is ready; lower the one or raise the other" .at $ready $limit) -}}
{{- end -}}
{{- $ready -}}
{{- end -}}
{{- end -}}

{{/* Takes {root, group}: the settings of a group's nodes. */}}
{{- define "penstock.server" -}}
{{- mergeOverwrite (deepCopy .root.Values.server) (deepCopy (.group.server | default dict)) | toJson -}}
{{- end -}}

{{/* Takes {root, group, at}: seconds that the kubelet waits before it kills. */}}
{{- define "penstock.grace" -}}
{{- $server := include "penstock.server" . | fromJson -}}
{{- $least := add (int .root.Values.preStopSeconds) (int (ceil (float64 $server.drain_seconds))) -}}
{{- $given := .root.Values.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $given -}}
{{- add $least 5 -}}
{{- else if le (int $given) (int $least) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is not above preStopSeconds and drain_seconds of %s, which are %d together: the node would be killed while it drains" (int $given) .at (int $least)) -}}
{{- else -}}
{{- int $given -}}
{{- end -}}
{{- end -}}
