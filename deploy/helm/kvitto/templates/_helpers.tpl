{{- define "kvitto.name" -}}
{{- if contains "kvitto" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-kvitto" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvitto.selector" -}}
app.kubernetes.io/name: kvitto
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvitto.labels" -}}
{{ include "kvitto.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "kvitto.secret" -}}
{{- default (include "kvitto.name" .) .Values.auth.existingSecret -}}
{{- end -}}
