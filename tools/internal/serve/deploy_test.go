package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep/tools/internal/redistest"
)

const deploy = "../../deploy"

func read(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

// Dashboards and alerts name only metrics that a server has.
func TestDashboardAndAlertsNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	r := start(t, local(t), Options{})
	rc := redistest.New(patient(r.at("resp")))
	defer rc.Close()
	ctx := context.Background()
	require.NoError(t, rc.Set(ctx, "k", make([]byte, 2<<20), 0))
	_, err := rc.Get(ctx, "k")
	require.NoError(t, err)
	res, err := http.Get("http://" + r.at("http") + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	there := string(body)
	// A counter with labels is there once it has counted: by reason, after a first miss.
	for file, prefix := range map[string]string{"../../../store/internal/observe/metrics.go": "skep_", "tls.go": "",
		"denied.go": "", "nodes.go": "", "repair.go": ""} {
		names := regexp.MustCompile(`(?i)desc\("([a-z_]+)"`).FindAllStringSubmatch(read(t, file), -1)
		require.NotEmpty(t, names)
		for _, n := range names {
			there += prefix + n[1] + " \n"
		}
	}
	for _, file := range []string{"grafana.json", "alerts.yaml"} {
		used := regexp.MustCompile(`skep_[a-z_]+`).FindAllString(read(t, filepath.Join(deploy, file)), -1)
		require.Greater(t, len(used), 5, file)
		for _, name := range used {
			assert.Regexp(t, `(?m)^`+name+`[ {]`, there, "%s uses %s", file, name)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestDashboardLoads(t *testing.T) {
	t.Parallel()
	var d struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, filepath.Join(deploy, "grafana.json"))), &d))
	assert.Equal(t, "skep", d.Title)
	ids, places := map[int]bool{}, map[[2]int]bool{}
	for _, p := range d.Panels {
		assert.False(t, ids[p.ID], "panel ids are unique")
		assert.False(t, places[[2]int{p.GridPos.X, p.GridPos.Y}], "no panel lies on another")
		ids[p.ID], places[[2]int{p.GridPos.X, p.GridPos.Y}] = true, true
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24)
		assert.NotEmpty(t, p.Targets, p.Title)
		for _, e := range p.Targets {
			assert.Equal(t, strings.Count(e.Expr, "("), strings.Count(e.Expr, ")"), e.Expr)
		}
	}
}

func TestAlertsLoad(t *testing.T) {
	t.Parallel()
	var f struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, filepath.Join(deploy, "alerts.yaml"))), &f))
	for _, r := range f.Groups[0].Rules {
		assert.NotEmpty(t, r.Expr, r.Alert)
		assert.NotEmpty(t, r.Labels["severity"], r.Alert)
		assert.NotEmpty(t, r.Annotations["action"], "%s says what to do", r.Alert)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: the rules were read, their expressions not parsed")
	}
	out, err := exec.Command(promtool, "check", "rules", filepath.Join(deploy, "alerts.yaml")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// manifest reads the documents of one, by kind. dig gives what lies in one at a path.
func manifest(t *testing.T, name string) (docs map[string]map[string]any, dig func(v any, path ...any) any) {
	docs = map[string]map[string]any{}
	d := yaml.NewDecoder(strings.NewReader(read(t, filepath.Join(deploy, "kubernetes", name))))
	for {
		var doc map[string]any
		if err := d.Decode(&doc); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		docs[doc["kind"].(string)] = doc
	}
	return docs, func(v any, path ...any) any {
		for _, p := range path {
			switch k := p.(type) {
			case string:
				v = v.(map[string]any)[k]
			case int:
				v = v.([]any)[k]
			}
			require.NotNil(t, v, "%v", path)
		}
		return v
	}
}

// The manifests agree with each other and with what the server takes.
func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	docs, dig := manifest(t, "skep.yaml")
	tokens := t.TempDir()
	text := strings.ReplaceAll(dig(docs["ConfigMap"], "data", "skep.yaml").(string), "/tokens/", tokens+"/")
	for _, name := range []string{"engine", "operator"} {
		require.NoError(t, os.WriteFile(filepath.Join(tokens, name), []byte(token+name), 0o600))
	}
	c, err := Load(write(t, "skep.yaml", text), nil, nil)
	require.NoError(t, err)

	pod := dig(docs["StatefulSet"], "spec", "template", "spec")
	ports := map[string]int{}
	for _, p := range dig(pod, "containers", 0, "ports").([]any) {
		ports[dig(p, "name").(string)] = dig(p, "containerPort").(int)
	}
	assert.Equal(t, map[string]int{"wire": 7420, "resp": 7421, "http": 7422}, ports)
	for _, addr := range []string{c.Listen, c.RESP, c.HTTP} {
		assert.Regexp(t, `^0\.0\.0\.0:742[012]$`, addr)
	}
	for _, probe := range []string{"startupProbe", "readinessProbe", "livenessProbe"} {
		assert.Contains(t, []string{"/readyz", "/healthz"}, dig(pod, "containers", 0, probe, "httpGet", "path"))
		assert.Equal(t, "http", dig(pod, "containers", 0, probe, "httpGet", "port"))
	}
	// A node that cannot ask the others yet is not ready, and is neither killed for that nor hidden from them.
	assert.Equal(t, "/readyz", dig(pod, "containers", 0, "readinessProbe", "httpGet", "path"))
	assert.Equal(t, "/healthz", dig(pod, "containers", 0, "startupProbe", "httpGet", "path"))
	assert.Equal(t, true, dig(docs["Service"], "spec", "publishNotReadyAddresses"))
	assert.Equal(t, "Parallel", dig(docs["StatefulSet"], "spec", "podManagementPolicy"))
	drain := int64(c.Limits.Drain) / 1e9
	assert.Greater(t, int64(dig(pod, "terminationGracePeriodSeconds").(int)), drain, "a drain is not killed")
	assert.Equal(t, dig(docs["StatefulSet"], "spec", "selector", "matchLabels"), dig(docs["Service"], "spec", "selector"))
	var mem Size
	require.NoError(t, mem.Set(strings.Replace(dig(pod, "containers", 0, "resources", "limits", "memory").(string), "Gi", "GiB", 1)))
	assert.Greater(t, mem, c.Store.DRAMBytes+c.Store.IOBytes+2<<30, "the budgets fit, with room for catalog, index and Go")
}

// Each pod of the cluster's manifest has settings of its own, by its name: it knows itself and the others.
func TestKubernetesManifestOfACluster(t *testing.T) {
	t.Parallel()
	docs, dig := manifest(t, "cluster.yaml")
	p := newPKI(t)
	p.issue("tls")
	require.NoError(t, os.Rename(filepath.Join(p.dir, "tls.pem"), filepath.Join(p.dir, "tls.crt")))
	require.NoError(t, os.Rename(filepath.Join(p.dir, "ca.pem"), filepath.Join(p.dir, "ca.crt")))
	for _, name := range []string{"engine", "nodes", "operator"} {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, name), []byte(token+name), 0o600))
	}
	text := dig(docs["ConfigMap"], "data", "skep.yaml").(string)
	here := []string{"/tokens/", p.dir + "/", "/peers/", p.dir + "/", "dir: /data", "dir: " + t.TempDir()}
	text = strings.NewReplacer(here...).Replace(text)
	path := write(t, "skep.yaml", text)
	set := docs["StatefulSet"]
	pod := dig(set, "spec", "template", "spec")
	pods := dig(set, "spec", "replicas").(int)
	seeds := map[string]bool{}
	for i := range pods {
		name := fmt.Sprint(dig(set, "metadata", "name"), "-", i)
		var env []string
		for _, e := range dig(pod, "containers", 0, "env").([]any) {
			value, _ := e.(map[string]any)["value"].(string)
			if value == "" {
				require.Equal(t, "metadata.name", dig(e, "valueFrom", "fieldRef", "fieldPath"))
				value = name
			}
			env = append(env, dig(e, "name").(string)+"="+strings.ReplaceAll(value, "$(SKEP_NODE)", name))
		}
		c, err := Load(path, env, nil)
		require.NoError(t, err)
		require.Equal(t, name, c.Node)
		require.Contains(t, c.Join.Seeds, c.Join.Addr, "it is one of those that others ask")
		require.Len(t, c.Join.Seeds, pods)
		seeds[c.Join.Addr] = true
		host, _, err := net.SplitHostPort(c.Join.Peer)
		require.NoError(t, err)
		require.Equal(t, name+"."+dig(set, "spec", "serviceName").(string)+".default.svc.cluster.local", host)
		require.Equal(t, i == 0, c.Join.First == c.Node)
		require.Equal(t, 2, c.Join.Replicas)
	}
	require.Len(t, seeds, pods)
	assert.Equal(t, true, dig(docs["Service"], "spec", "publishNotReadyAddresses"))
	assert.Equal(t, "Parallel", dig(set, "spec", "podManagementPolicy"))
	assert.Equal(t, 1, dig(docs["PodDisruptionBudget"], "spec", "maxUnavailable"))
}

// The server on each node and the engine beside it meet: at the socket, by the token, as one user, with room for the
// engine's memory.
func TestKubernetesManifestsOfAServerBesideAnEngine(t *testing.T) {
	t.Parallel()
	docs, dig := manifest(t, "daemonset.yaml")
	engines, _ := manifest(t, "engine.yaml")
	tokens := t.TempDir()
	for _, name := range []string{"engine", "operator"} {
		require.NoError(t, os.WriteFile(filepath.Join(tokens, name), []byte(token+name), 0o600))
	}
	text := strings.ReplaceAll(dig(docs["ConfigMap"], "data", "skep.yaml").(string), "/tokens/", tokens+"/")
	c, err := Load(write(t, "skep.yaml", text), nil, nil)
	require.NoError(t, err)
	server, engine := dig(docs["DaemonSet"], "spec", "template", "spec"), dig(engines["Pod"], "spec")

	// volumes are those of a pod, by where they are mounted.
	volumes := func(pod any) map[string]map[string]any {
		named, out := map[string]map[string]any{}, map[string]map[string]any{}
		for _, v := range dig(pod, "volumes").([]any) {
			named[dig(v, "name").(string)] = v.(map[string]any)
		}
		for _, m := range dig(pod, "containers", 0, "volumeMounts").([]any) {
			require.Contains(t, named, dig(m, "name"))
			out[dig(m, "mountPath").(string)] = named[dig(m, "name").(string)]
		}
		return out
	}
	its, beside := volumes(server), volumes(engine)
	drives := map[any]bool{}
	for _, path := range c.Devices {
		drives[dig(its[filepath.Dir(path)], "hostPath", "path")] = true
	}
	require.Len(t, drives, 4, "each device is on a drive of its own")

	args := dig(engine, "containers", 0, "args").([]any)
	var vllm struct {
		Extra struct {
			Bytes Size `json:"cpu_bytes_to_use"`
			Tiers []struct {
				URL   string
				Token string `json:"token_file"`
			} `json:"secondary_tiers"`
		} `json:"kv_connector_extra_config"`
	}
	require.NoError(t, json.Unmarshal([]byte(args[len(args)-1].(string)), &vllm))
	tier := vllm.Extra.Tiers[0]
	require.Equal(t, "unix:"+c.Unix, tier.URL)
	run := filepath.Dir(c.Unix)
	require.Equal(t, dig(its[run], "hostPath", "path"), dig(beside[run], "hostPath", "path"))
	require.Equal(t, dig(its["/tokens"], "secret", "secretName"), dig(beside["/tokens"], "secret", "secretName"))
	require.Equal(t, "/tokens/"+dig(beside["/tokens"], "secret", "items", 0, "path").(string), tier.Token)
	require.Equal(t, dig(server, "securityContext", "runAsUser"), dig(engine, "securityContext", "runAsUser"))

	bytes := func(text any) (n Size) {
		require.NoError(t, n.Set(strings.Replace(text.(string), "Gi", "GiB", 1)))
		return n
	}
	require.Greater(t, bytes(dig(beside["/dev/shm"], "emptyDir", "sizeLimit")), vllm.Extra.Bytes)
	require.Greater(t, c.Limits.SharedBytes, vllm.Extra.Bytes)
	require.Greater(t, bytes(dig(server, "containers", 0, "resources", "limits", "memory")),
		c.Store.DRAMBytes+c.Store.IOBytes+c.Limits.SharedBytes+2<<30)
}

func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	unit := read(t, filepath.Join(deploy, "skep.service"))
	for _, want := range []string{"ExecStart=/usr/local/bin/skep serve --config", "ExecReload=/bin/sh -c 'kill -HUP $MAINPID'", "TimeoutStopSec=90", "Type=notify", "RestartPreventExitStatus=2", "WatchdogSec="} {
		assert.Contains(t, unit, want)
	}
	for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(regexp.MustCompile(`(?m)^ExecStart=.*$`).FindString(unit), -1) {
		known := flag[1] == "config"
		for _, f := range Flags() {
			known = known || f.Name == flag[1]
		}
		assert.True(t, known, "--%s", flag[1])
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: the unit was read, not verified")
	}
	out, _ := exec.Command(analyze, "verify", "--man=no", filepath.Join(deploy, "skep.service")).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		assert.Contains(t, line, "/usr/local/bin/skep", "only the program may be missing: %s", line)
	}
}
