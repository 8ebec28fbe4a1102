{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "penstock.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end }}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}
