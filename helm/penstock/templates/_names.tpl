{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/* What never changes in the life of a release: selectors cannot. */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: loader
{{- end -}}

{{- define "penstock.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Takes {root, group}: the name of a group's objects. */}}
{{- define "penstock.groupName" -}}
{{- printf "%s-%s" (include "penstock.fullname" .root) .group.name -}}
{{- end -}}

{{- define "penstock.jobsName" -}}
{{- .group.existingConfigMap | default (printf "%s-jobs" (include "penstock.groupName" .)) -}}
{{- end -}}

{{/* Takes {root, group}: where trainers find the first node of a group. */}}
{{- define "penstock.address" -}}
{{- printf "%s-0.%s.%s.svc:%d" (include "penstock.groupName" .) (include "penstock.fullname" .root) .root.Release.Namespace (int .root.Values.service.dataPort) -}}
{{- end -}}

{{/* Takes {root, enabled, kind}: "yes" where a kind of the Prometheus operator is wanted and known. */}}
{{- define "penstock.wanted" -}}
{{- if eq (toString .enabled) "true" -}}
yes
{{- else if and (eq (toString .enabled) "auto") (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind)) -}}
yes
{{- end -}}
{{- end -}}

{{/* Takes {root, group}: "yes" where a group has, or may have, several nodes. */}}
{{- define "penstock.several" -}}
{{- if or .group.autoscaling (gt (kindIs "invalid" .group.replicas | ternary 1 .group.replicas | int) 1) -}}
yes
{{- end -}}
{{- end -}}

{{/* Takes {root, group}: what a Loader is given. */}}
{{- define "penstock.target" -}}
{{- if include "penstock.several" . -}}
{{- printf "dns:///%s.%s.svc:%d" (include "penstock.groupName" .) .root.Release.Namespace (int .root.Values.service.dataPort) -}}
{{- else -}}
{{- include "penstock.address" . -}}
{{- end -}}
{{- end -}}

{{/* Takes a group's autoscaling: up at once, as the value has waited five minutes; down one at a time. */}}
{{- define "penstock.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{type: Percent, value: 900, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ kindIs "invalid" .downSeconds | ternary 1800 .downSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 300}]
{{- end -}}
