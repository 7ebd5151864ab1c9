{{- define "skep.domain" -}}
{{ .Release.Name }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}
{{- define "skep.labels" -}}
{app: {{ .Release.Name }}}
{{- end -}}
{{- define "skep.tokens" -}}
{{ .Values.existing.tokens | default (printf "%s-tokens" .Release.Name) }}
{{- end -}}
{{- define "skep.peers" -}}
{{ .Values.existing.peers | default (printf "%s-peers" .Release.Name) }}
{{- end -}}
{{- define "skep.security" -}}
{{- $own := dict "runAsNonRoot" true "runAsUser" 65532 "fsGroup" 65532 -}}
{{- $_ := set $own "fsGroupChangePolicy" "OnRootMismatch" -}}
{{- $_ := set $own "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{ mergeOverwrite $own .Values.podSecurity | toYaml }}
{{- end -}}
{{- define "skep.raw" -}}
{{- range $i, $d := .Values.devices }}
{{- if get $d "block" }}
- {name: device-{{ $i }}, devicePath: /dev/skep-{{ $i }}}
{{- end }}
{{- end }}
{{- end -}}
{{- define "skep.config" -}}
{{- if .Values.settings -}}
{{ mergeOverwrite (include "skep.settings" . | fromYaml) .Values.settings | toYaml }}
{{- else -}}
{{ include "skep.settings" . }}
{{- end -}}
{{- end -}}
{{- define "skep.settings" -}}
dir: /data
{{- if .Values.devices }}
devices:
  {{- range $i, $d := .Values.devices }}
  - {{ if get $d "block" }}/dev/skep-{{ $i }}{{ else }}/devices/{{ $i }}/skep{{ end }}
  {{- end }}
{{- else if not (hasKey .Values.settings "devices") }}
file_devices: {{ .Values.fileDevices }}
{{- end }}
listen: 0.0.0.0:7420
resp: 0.0.0.0:7421
http: 0.0.0.0:7422
unix: {{ if .Values.socketDir }}/run/skep/skep.sock{{ else }}none{{ end }}
join:
  seeds:
    {{- range $i := until (int .Values.nodes) }}
    - {{ $.Release.Name }}-{{ $i }}.{{ include "skep.domain" $ }}:7420
    {{- end }}
  first: {{ .Release.Name }}-0
  wait: 1m
  replicas: {{ .Values.replicas }}
  token_file: /tokens/operator
peers:
  listen: 0.0.0.0:7423
  cert: /peers/tls.crt
  key: /peers/tls.key
  ca: /peers/ca.crt
  token_file: /tokens/nodes
  {{- if .Values.tls.secretName }}
  server_ca: /tls/ca.crt
tls: {cert: /tls/tls.crt, key: /tls/tls.key}
  {{- end }}
store:
  capacity_bytes: {{ .Values.capacity }}
  change_capacity: true
  dram_bytes: {{ .Values.dram }}
  io_bytes: {{ .Values.io }}
credentials:
  - {name: engine, tenant: {{ .Values.tenant | quote }}, rights: [read, write], token_file: /tokens/engine}
  - {name: nodes, tenant: "*", rights: [read, write], token_file: /tokens/nodes}
  - {name: operator, tenant: "*", rights: [read, write, admin], token_file: /tokens/operator}
log: {format: json}
{{- end -}}
