{{/*
All that the chart knows of TLS and tokens: which variables a node and a client of it read, and which
files they name.
*/}}
{{- define "penstock.securityEnv" -}}
{{- if .Values.tls.secretName -}}
{{- $tls := dict "cert" "/tls/tls.crt" "key" "/tls/tls.key" -}}
{{- if .Values.tls.clientCa -}}{{- $_ := set $tls "client_ca" "/tls/ca.crt" -}}{{- end -}}
{{- with .Values.tls.minVersion -}}{{- $_ := set $tls "min_version" . -}}{{- end -}}
- name: PENSTOCK_TLS
  value: {{ toJson $tls | quote }}
{{- else -}}
- name: PENSTOCK_INSECURE
  value: "true"
{{- end }}
{{- if .Values.tokens.secretName }}
- name: PENSTOCK_TOKENS
  value: /tokens/tokens
{{- end }}
{{- end -}}

{{/* Whole folders: a subPath would never see a renewed secret. Readable by the group fsGroup alone. */}}
{{- define "penstock.securityMounts" -}}
{{- if .Values.tls.secretName }}
- name: tls
  mountPath: /tls
  readOnly: true
{{- end }}
{{- if .Values.tokens.secretName }}
- name: tokens
  mountPath: /tokens
  readOnly: true
{{- end }}
{{- end -}}

{{- define "penstock.securityVolumes" -}}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.tokens.secretName }}
- name: tokens
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* Of a client: the Pod of `helm test`. */}}
{{- define "penstock.clientEnv" -}}
{{- if .Values.tls.secretName }}
- name: PENSTOCK_TLS_CA
  value: /tls/ca.crt
{{- if .Values.tls.clientCa }}
- name: PENSTOCK_TLS_CERT
  value: /tls/tls.crt
- name: PENSTOCK_TLS_KEY
  value: /tls/tls.key
{{- end }}
{{- end }}
{{- if .Values.tokens.secretName }}
- name: PENSTOCK_TOKEN_FILE
  value: /tokens/token
{{- end }}
{{- end -}}

{{- define "penstock.clientVolumes" -}}
{{- if .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ .Values.tests.tlsSecretName }}, defaultMode: 0440}
{{- end }}
{{- if .Values.tokens.secretName }}
- name: tokens
  secret: {secretName: {{ .Values.tests.tokenSecretName }}, defaultMode: 0440}
{{- end }}
{{- end -}}
