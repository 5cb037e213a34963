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

{{- define "kvitto.nodes" -}}
{{- printf "%s-nodes" (include "kvitto.name" .) -}}
{{- end -}}

{{- define "kvitto.cluster" -}}
{{- printf "%s.%s" .Release.Namespace (include "kvitto.name" .) | trunc 64 -}}
{{- end -}}

{{- define "kvitto.keySecret" -}}
{{- default (include "kvitto.nodes" .) .Values.cluster.keySecret -}}
{{- end -}}

{{- /* how a pod gets into etcd, for the node and for what makes the cluster */ -}}
{{- define "kvitto.etcd" -}}
- name: KVITTO_ETCD
  value: {{ .Values.cluster.etcd | quote }}
- name: KVITTO_CLUSTER
  value: {{ include "kvitto.cluster" . | quote }}
{{- if .Values.cluster.etcdTlsSecret }}
- name: KVITTO_ETCD_CA
  value: /etc/kvitto/etcd-tls/ca.crt
- name: KVITTO_ETCD_CERT
  value: /etc/kvitto/etcd-tls/tls.crt
- name: KVITTO_ETCD_KEY
  value: /etc/kvitto/etcd-tls/tls.key
{{- end }}
{{- if .Values.cluster.etcdUserSecret }}
- name: KVITTO_ETCD_USER_FILE
  value: /etc/kvitto/etcd-user/user
{{- end }}
{{- end -}}

{{- define "kvitto.etcdMounts" -}}
- name: data
  mountPath: /var/lib/kvitto
{{- if .Values.cluster.etcdTlsSecret }}
- name: etcd-tls
  mountPath: /etc/kvitto/etcd-tls
  readOnly: true
{{- end }}
{{- if .Values.cluster.etcdUserSecret }}
- name: etcd-user
  mountPath: /etc/kvitto/etcd-user
  readOnly: true
{{- end }}
{{- end -}}

{{- define "kvitto.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end -}}
