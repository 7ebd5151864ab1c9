package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"dario.cat/mergo"
	"github.com/Masterminds/sprig/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const chart = "../deploy/helm/skep"

// rendered is what Helm makes of the chart, by name of the template: by the template engine and the functions that
// Helm has them from, and its own four that the chart uses. Nothing is looked up: it is a first installation.
func rendered(t *testing.T, release string, values map[string]any) map[string]string {
	t.Helper()
	all := map[string]any{}
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &all))
	require.NoError(t, mergo.Merge(&all, values, mergo.WithOverride))
	var about struct {
		Name       string
		AppVersion string `yaml:"appVersion"`
	}
	text, err = os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &about))

	set := template.New("chart").Option("missingkey=error")
	own := template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := set.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
		"fromYaml": func(text string) (out map[string]any, err error) { return out, yaml.Unmarshal([]byte(text), &out) },
		"lookup":   func(...string) map[string]any { return map[string]any{"data": nil} },
	}
	set.Funcs(sprig.TxtFuncMap()).Funcs(own)
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		_, err = set.New(filepath.Base(path)).Parse(string(text))
		require.NoError(t, err)
	}
	out := map[string]string{}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var b strings.Builder
		require.NoError(t, set.ExecuteTemplate(&b, name, map[string]any{
			"Values": all, "Chart": map[string]any{"Name": about.Name, "AppVersion": about.AppVersion},
			"Release": map[string]any{"Name": release, "Namespace": "default"},
		}), name)
		out[name] = b.String()
	}
	return out
}

// documents are those of YAML text, by kind and name.
func documents(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	d := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var doc map[string]any
		err := d.Decode(&doc)
		if err == io.EOF {
			return out
		}
		require.NoError(t, err, text)
		if doc != nil {
			out[doc["kind"].(string)+" "+doc["metadata"].(map[string]any)["name"].(string)] = doc
		}
	}
}

// The chart's defaults are the manifest that can be had without Helm, whose settings are loaded in a test of the
// server's; and the secrets that its first lines say how to make.
func TestTheChartIsTheManifest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../deploy/kubernetes/cluster.yaml")
	require.NoError(t, err)
	want := documents(t, string(text))
	files := rendered(t, "skep", nil)
	got := map[string]any{}
	for name, text := range files {
		if name == "NOTES.txt" {
			continue
		}
		for key, doc := range documents(t, text) {
			got[key] = doc
		}
	}
	keys := func(name string) (out []string) {
		for k := range got[name].(map[string]any)["data"].(map[string]any) {
			out = append(out, k)
		}
		return out
	}
	require.ElementsMatch(t, []string{"engine", "nodes", "operator"}, keys("Secret skep-tokens"))
	require.ElementsMatch(t, []string{"ca.crt", "tls.crt", "tls.key"}, keys("Secret skep-peers"))
	delete(got, "Secret skep-tokens")
	delete(got, "Secret skep-peers")
	settings := func(docs map[string]any) (out map[string]any) {
		data := docs["ConfigMap skep"].(map[string]any)["data"].(map[string]any)
		require.NoError(t, yaml.Unmarshal([]byte(data["skep.yaml"].(string)), &out))
		delete(data, "skep.yaml")
		return out
	}
	require.Equal(t, settings(want), settings(got))
	pod := got["StatefulSet skep"].(map[string]any)["spec"].(map[string]any)["template"].(map[string]any)
	delete(pod["metadata"].(map[string]any), "annotations") // a checksum of the settings
	require.Equal(t, want, got)
}

// What is set reaches the settings and the pods; secrets that are there are not made.
func TestTheChartsValues(t *testing.T) {
	t.Parallel()
	files := rendered(t, "kv", map[string]any{
		"nodes": 5, "existing": map[string]any{"tokens": "mine", "peers": "theirs"},
		"settings":     map[string]any{"store": map[string]any{"policy": "lru"}, "log": map[string]any{"level": "debug"}},
		"nodeSelector": map[string]any{"disk": "nvme"}, "image": map[string]any{"tag": "v1"},
	})
	require.Empty(t, documents(t, files["secrets.yaml"]))
	data := documents(t, files["configmap.yaml"])["ConfigMap kv"].(map[string]any)["data"].(map[string]any)
	var c struct {
		Join struct {
			Seeds []string
			First string
		}
		Store map[string]any
		Log   map[string]any
	}
	require.NoError(t, yaml.Unmarshal([]byte(data["skep.yaml"].(string)), &c))
	require.Len(t, c.Join.Seeds, 5)
	require.Equal(t, "kv-4.kv.default.svc.cluster.local:7420", c.Join.Seeds[4])
	require.Equal(t, "kv-0", c.Join.First)
	require.Equal(t, "lru", c.Store["policy"])
	require.Equal(t, "400GiB", c.Store["capacity_bytes"], "what is not set stays")
	require.Equal(t, map[string]any{"format": "json", "level": "debug"}, c.Log)
	pod := files["statefulset.yaml"]
	for _, want := range []string{"replicas: 5", "image: skep:v1", "disk: nvme", "secretName: mine",
		"secretName: theirs"} {
		require.Contains(t, pod, want)
	}
	require.Contains(t, files["NOTES.txt"], "kubectl exec -n default kv-0 -- /skep cluster status")
	require.Contains(t, files["NOTES.txt"], "one address, kv.default.svc.cluster.local:7420,")
	require.NotContains(t, files["NOTES.txt"]+pod, "/run/skep")

	files = rendered(t, "kv", map[string]any{"socketDir": "/srv/skep"})
	require.Equal(t, "/run/skep/skep.sock", settingsOf(t, files)["unix"])
	require.Contains(t, files["statefulset.yaml"], "hostPath: {path: /srv/skep, type: DirectoryOrCreate}")
	require.Contains(t, files["NOTES.txt"], "with /srv/skep mounted at /run/skep by hostPath")
}

// Where Helm is installed it looks for itself.
func TestHelmTakesTheChart(t *testing.T) {
	t.Parallel()
	helm, err := exec.LookPath("helm")
	if err != nil {
		t.Skip("helm is not installed: the chart is rendered by its template engine only")
	}
	out, err := exec.Command(helm, "lint", chart).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(helm, "template", "skep", chart).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Len(t, documents(t, string(out)), 6)
}

// Another value that reaches the settings starts the pods anew, and one that does not leaves them.
func TestTheChartsPodsFollowTheSettings(t *testing.T) {
	t.Parallel()
	annotation := func(values map[string]any) string {
		_, text, _ := strings.Cut(rendered(t, "kv", values)["statefulset.yaml"], "annotations: {skep/settings: ")
		text, _, found := strings.Cut(text, "}\n")
		require.True(t, found)
		require.Len(t, text, 64)
		return text
	}
	as := annotation(nil)
	require.NotEqual(t, as, annotation(map[string]any{"capacity": "500GiB"}))
	require.NotEqual(t, as, annotation(map[string]any{"tenant": "test"}))
	require.NotEqual(t, as, annotation(map[string]any{"settings": map[string]any{"resp": "none"}}))
	require.Equal(t, as, annotation(map[string]any{"imagePullSecrets": []any{map[string]any{"name": "r"}}}))
}

// With a certificate engines' ports, probes, the other nodes and Prometheus speak TLS.
func TestTheChartsTLS(t *testing.T) {
	t.Parallel()
	files := rendered(t, "kv", map[string]any{"tls": map[string]any{"secretName": "cert"},
		"imagePullSecrets": []any{map[string]any{"name": "registry"}},
		"serviceMonitor":   map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}}})
	settings := settingsOf(t, files)
	require.Equal(t, map[string]any{"cert": "/tls/tls.crt", "key": "/tls/tls.key"}, settings["tls"])
	require.Equal(t, "/tls/ca.crt", settings["peers"].(map[string]any)["server_ca"])
	require.Equal(t, "/tokens/nodes", settings["peers"].(map[string]any)["token_file"], "what follows stays in place")
	pod := files["statefulset.yaml"]
	require.NotEmpty(t, documents(t, pod))
	require.Equal(t, 3, strings.Count(pod, "port: http, scheme: HTTPS}"))
	require.Contains(t, pod, "{name: tls, mountPath: /tls, readOnly: true}")
	require.Contains(t, pod, "secret: {secretName: cert, defaultMode: 0440}")
	require.Contains(t, pod, "- name: registry")
	monitor := documents(t, files["servicemonitor.yaml"])["ServiceMonitor kv"].(map[string]any)
	require.Equal(t, map[string]any{"release": "prometheus"}, monitor["metadata"].(map[string]any)["labels"])
	require.Equal(t, []any{map[string]any{"port": "http", "scheme": "https",
		"authorization": map[string]any{"credentials": map[string]any{"name": "kv-tokens", "key": "operator"}},
		"tlsConfig": map[string]any{"serverName": "kv.default.svc.cluster.local",
			"ca": map[string]any{"secret": map[string]any{"name": "cert", "key": "ca.crt"}}}}},
		monitor["spec"].(map[string]any)["endpoints"])
	require.Empty(t, documents(t, rendered(t, "kv", nil)["servicemonitor.yaml"]), "off")
}

// Each drive of a node is mounted in its way and is a device of the server's, which makes no files of its own then.
func TestTheChartsDevices(t *testing.T) {
	t.Parallel()
	files := rendered(t, "kv", map[string]any{
		"devices": []any{
			map[string]any{"hostPath": "/mnt/nvme0"},
			map[string]any{"storageClass": "local-nvme", "size": "3500Gi"},
			map[string]any{"storageClass": "local-raw", "size": "3400Gi", "block": true},
		},
		"podSecurity": map[string]any{"runAsUser": 1000, "supplementalGroups": []any{6}},
	})
	settings := settingsOf(t, files)
	require.Equal(t, []any{"/devices/0/skep", "/devices/1/skep", "/dev/skep-2"}, settings["devices"])
	require.NotContains(t, settings, "file_devices")

	var set struct {
		Spec struct {
			Template struct {
				Spec struct {
					SecurityContext map[string]any `yaml:"securityContext"`
					Containers      []struct {
						VolumeMounts  []struct{ Name string } `yaml:"volumeMounts"`
						VolumeDevices []map[string]string     `yaml:"volumeDevices"`
					}
					Volumes []map[string]any
				}
			}
			VolumeClaimTemplates []struct {
				Metadata struct{ Name string }
				Spec     struct {
					StorageClassName string `yaml:"storageClassName"`
					VolumeMode       string `yaml:"volumeMode"`
					Resources        struct{ Requests map[string]string }
				}
			} `yaml:"volumeClaimTemplates"`
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(files["statefulset.yaml"]), &set))
	pod, claims := set.Spec.Template.Spec, set.Spec.VolumeClaimTemplates
	names := ""
	for _, m := range pod.Containers[0].VolumeMounts {
		names += m.Name + " "
	}
	require.Equal(t, "data config tokens peers device-0 device-1 ", names)
	require.Equal(t, []map[string]string{{"name": "device-2", "devicePath": "/dev/skep-2"}}, pod.Containers[0].VolumeDevices)
	require.Contains(t, pod.Volumes, map[string]any{"name": "device-0",
		"hostPath": map[string]any{"path": "/mnt/nvme0", "type": "Directory"}})
	require.Equal(t, 1000, pod.SecurityContext["runAsUser"])
	require.Equal(t, []any{6}, pod.SecurityContext["supplementalGroups"])
	require.Equal(t, true, pod.SecurityContext["runAsNonRoot"], "what is not set stays")
	require.Len(t, claims, 3)
	require.Equal(t, "device-1 local-nvme ", claims[1].Metadata.Name+" "+claims[1].Spec.StorageClassName+" "+claims[1].Spec.VolumeMode)
	require.Equal(t, "device-2 local-raw Block", claims[2].Metadata.Name+" "+claims[2].Spec.StorageClassName+" "+claims[2].Spec.VolumeMode)
	require.Equal(t, "3400Gi", claims[2].Spec.Resources.Requests["storage"])

	own := map[string]any{"devices": []any{"/dev/nvme0n1"}}
	settings = settingsOf(t, rendered(t, "kv", map[string]any{"settings": own}))
	require.Equal(t, own["devices"], settings["devices"])
	require.NotContains(t, settings, "file_devices", "the server takes one of them")
}

// settingsOf are the server's settings in what was rendered.
func settingsOf(t *testing.T, files map[string]string) (out map[string]any) {
	t.Helper()
	for _, doc := range documents(t, files["configmap.yaml"]) {
		data := doc.(map[string]any)["data"].(map[string]any)
		require.NoError(t, yaml.Unmarshal([]byte(data["skep.yaml"].(string)), &out))
	}
	return out
}

// What is handed out starts the image that is handed out with it: the chart's versions are the commit's, and so is the
// manifests' image. The rest of the chart is the tree's.
func TestWhatIsHandedOutStartsItsImage(t *testing.T) {
	t.Parallel()
	out, _ := all(t, programsOf(t))
	const version = "0.0.0-20260101000000-0123456789ab"
	unpacked := func(name string) string {
		f, err := os.Open(filepath.Join(out, name))
		require.NoError(t, err)
		defer f.Close()
		z, err := gzip.NewReader(f)
		require.NoError(t, err)
		dir := t.TempDir()
		untar(t, z, dir)
		return dir
	}
	dir := filepath.Join(unpacked("skep-"+version+".tgz"), "skep")
	files, err := tree(chart)
	require.NoError(t, err)
	for _, f := range files {
		if f.directory() || f.name == "Chart.yaml" {
			continue
		}
		assert.Equal(t, read(t, filepath.Join(chart, f.name)), read(t, filepath.Join(dir, f.name)))
	}
	text := read(t, filepath.Join(dir, "Chart.yaml"))
	assert.Contains(t, text, "\nversion: "+version+"\nappVersion: "+version+"\n")
	assert.Equal(t, strings.Count(read(t, filepath.Join(chart, "Chart.yaml")), "\n"), strings.Count(text, "\n"))

	dir = unpacked("skep_" + version + "_linux_arm64.tar.gz")
	for _, name := range []string{"skep.yaml", "cluster.yaml", "daemonset.yaml"} {
		text := read(t, filepath.Join(dir, "skep_"+version+"_linux_arm64", "examples/kubernetes", name))
		assert.Contains(t, text, "image: skep:"+version+" ")
		assert.NotContains(t, text, "skep:latest")
	}
}
