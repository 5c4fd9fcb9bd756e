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
{{- if ne (toString .group.workers) "auto" -}}{{- $_ := set $requests "cpu" (toString .group.workers) -}}{{- end -}}
{{- $ours := dict "requests" $requests "limits" (dict "memory" $limit) -}}
{{- mergeOverwrite $ours (deepCopy (.group.resources | default dict)) | toYaml -}}
{{- end -}}

{{/* Takes {root, group, at}: settings as variables, which win over those of a job file. */}}
{{- define "penstock.env" -}}
{{- $server := include "penstock.server" . | fromJson -}}
{{- $_ := set $server "ready_bytes" (include "penstock.readyBytes" .) -}}
{{- $_ = set $server "workers" .group.workers -}}
{{- $_ = set $server "listen" (printf "0.0.0.0:%d" (int .root.Values.service.dataPort)) -}}
{{- $_ = set $server "metrics" (printf "0.0.0.0:%d" (int .root.Values.service.metricsPort)) -}}
{{- $_ = set $server "store" "sqlite:////data/penstock.db" -}}
{{- $_ = set $server "hash_cache" "/data/files" -}}
{{- range $name, $value := $server -}}
- name: PENSTOCK_{{ upper $name }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{ end -}}
{{ include "penstock.securityEnv" .root }}
- name: HOME
  value: /tmp
- name: HF_HOME
  value: /data/huggingface
{{- with .group.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
