package serve

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/tools/leaks"
	"github.com/skepkv/skep/wire/httpapi"
)

func TestMain(m *testing.M) {
	unjudged.Drives()
	leaks.Main(m, goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

func noEnv(string) (string, bool) { return "", false }

func write(t *testing.T, name, text string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestLaterSourcesWin(t *testing.T) {
	t.Parallel()
	file := write(t, "skep.yaml", "dir: /from-file\nresp: 127.0.0.1:1\nstore:\n  dram_bytes: 1GiB\nlimits:\n  drain: 5s\ntls:\n  plain: [resp]\n")
	env := []string{"SKEP_RESP=127.0.0.1:2", "SKEP_STORE_DRAM_BYTES=2GiB", "SKEP_TLS_PLAIN=resp, http"}
	c, err := Load(file, env, map[string]string{"resp": "127.0.0.1:3"})
	require.NoError(t, err)
	assert.Equal(t, "/from-file", c.Dir)
	assert.Equal(t, Size(2<<30), c.Store.DRAMBytes)
	assert.Equal(t, "127.0.0.1:3", c.RESP)
	assert.Equal(t, Duration(5*time.Second), c.Limits.Drain)
	assert.Equal(t, []string{"resp", "http"}, c.TLS.Plain)
	assert.Equal(t, Default().HTTP, c.HTTP, "and what nobody says is the default")
}

// A store's devices are files in its directory, as many as file_devices says, or at the paths in devices: a list, or
// text. A number there is what file_devices is called now.
func TestDevicesByNumberAndByPath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		env   []string
		flags map[string]string
		files int
		paths Paths
	}{
		{text: "file_devices: 3", files: 3},
		{text: "devices: [/dev/a, /dev/b]", paths: Paths{"/dev/a", "/dev/b"}},
		{text: "devices: /dev/a, /dev/b", paths: Paths{"/dev/a", "/dev/b"}},
		{text: "devices: [/dev/a]", env: []string{"SKEP_DEVICES=/dev/c"},
			flags: map[string]string{"devices": "/dev/d"}, paths: Paths{"/dev/d"}},
		{text: `devices: "4"`, files: 4},
		{text: "devices: 4", env: []string{"SKEP_DEVICES=5"}, files: 5},
		{text: "devices: 4", flags: map[string]string{"file_devices": "2"}, files: 2},
	} {
		got, err := Load(write(t, "skep.yaml", "dir: /d\n"+c.text+"\n"), c.env, c.flags)
		require.NoError(t, err, c.text)
		assert.Equal(t, c.files, got.FileDevices, c.text)
		assert.ElementsMatch(t, c.paths, got.Devices, c.text)
	}
	_, err := Load(write(t, "skep.yaml", "dir: /d\nfile_devices: 2\ndevices: [/dev/a]\n"), nil, nil)
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "file_devices and devices is both, must be one of them")
	_, err = Load(write(t, "skep.yaml", "dir: /d\ndevices: 0\n"), nil, nil)
	require.ErrorContains(t, err, "devices is 0, must be paths")
}

// A write budget is the store's, and needs a DRAM tier, in which blocks wait.
func TestBackgroundRatesAreSettings(t *testing.T) {
	t.Parallel()
	c, err := Load(write(t, "skep.yaml", "dir: /d\nstore: {scrub_rate: 50MB}\n"),
		[]string{"SKEP_STORE_BACKGROUND_RATE=100MB"}, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 50e6, c.storeOptions().ScrubRate)
	assert.EqualValues(t, 100e6, c.storeOptions().BackgroundRate)
}

func TestAWriteBudgetIsASetting(t *testing.T) {
	t.Parallel()
	c, err := Load(write(t, "skep.yaml", "dir: /d\nstore: {write_budget: 3.84TB}\n"), nil, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 3.84e12, c.storeOptions().WriteBudget)
	_, err = Load(write(t, "skep.yaml", "dir: /d\nstore: {write_budget: 1GB, dram_bytes: 0}\n"), nil, nil)
	require.ErrorContains(t, err, "store.dram_bytes with store.write_budget")
	c.Dir = t.TempDir()
	c.FileDevices, c.Store.CapacityBytes = 2, 256<<20
	st, err := store.Open(t.Context(), c.storeOptions())
	require.NoError(t, err)
	figures, err := st.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 3.84e12, figures.Admission.BudgetPerDay, "of each device")
	require.NoError(t, st.Close())
}

// Everything wrong is in one error, by field.
func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	file := write(t, "skep.yaml", `
file_devices: 99
listen: 0.0.0.0:7420
resp: nonsense
nonesuch: 1
capacity: 1GiB
store: {policy: mru, dram_bytes: lots, io_bytes: 1MiB}
limits: {drain: 0s, connections: 0}
redis: {copies: 9}
log: {level: loud}
trace: {ratio: 2, endpoint: "nowhere"}
tls: {cert: only.pem, plain: [ftp]}
`)
	_, err := Load(file, []string{"SKEP_LIMITS_KEYS=x"}, nil)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "serve.Config")
	for _, field := range []string{"there is no setting nonesuch here", "no setting capacity here; it is store.capacity_bytes", "lots", "SKEP_LIMITS_KEYS", "dir", "devices", "listen is 0.0.0.0:7420, must be a loopback address", "resp", "store.policy", "store.io_bytes",
		"limits.drain", "limits.connections", "redis.copies", "log.level", "trace.ratio", "trace.endpoint", "tls.cert and tls.key", "tls.plain"} {
		assert.Contains(t, err.Error(), field)
	}
	assert.ErrorIs(t, err, skep.Invalid)
}

const token = "a-token-of-good-length"

// Alone: the environment is the process's.
func TestCredentialsAreCheckedAndNeverShown(t *testing.T) {
	t.Setenv("SKEP_TEST_TOKEN", token)
	file := write(t, "skep.yaml", fmt.Sprintf(`
dir: /d
listen: 0.0.0.0:7420
credentials:
  - {name: a, tenant: t, rights: [read], token_env: SKEP_TEST_TOKEN}
  - {name: b, tenant: t, rights: [read, admin], token_file: %[1]s}
  - {name: c, tenant: t, rights: [write], token_sha256: %[2]x, expires: 2030-01-02T03:04:05Z}
tenants:
  t: {share: 1TiB, requests_per_second: 10, bytes_per_second: 1GB, connections: 3}
`, write(t, "token", "the-file-s-"+token+"\n"), sha256.Sum256([]byte("the-hash-s-"+token))))
	c, err := Load(file, nil, nil)
	require.NoError(t, err, "with credentials any address will do")
	creds, wrong := c.credentials(os.LookupEnv)
	require.Empty(t, wrong)
	require.Len(t, creds, 3)
	for i, text := range []string{token, "the-file-s-" + token, "the-hash-s-" + token} {
		assert.Equal(t, sha256.Sum256([]byte(text)), creds[i].TokenSHA256)
	}
	var out bytes.Buffer
	require.NoError(t, c.Print(&out))
	assert.NotContains(t, out.String(), token)
	assert.NotContains(t, fmt.Sprintf("%+v", c), token)

	file = write(t, "bad.yaml", `
dir: /d
credentials:
  - {name: a, tenant: t, rights: [read], token_env: SKEP_TEST_NONE}
  - {name: a, tenant: "", rights: [root], token_sha256: short}
  - {name: d, tenant: t, rights: [], token_file: /none, cert_name: x}
tenants: {t: {connections: -1, share: 1GiB, bytes: 2GiB}}
`)
	_, err = Load(file, nil, nil)
	require.Error(t, err)
	for _, part := range []string{"SKEP_TEST_NONE", "credentials[1].name", "credentials[1].tenant", "credentials[1].rights", "SHA-256", "credentials[2].rights", "2 ways in", "tenants.t", "tenants.t, share and bytes"} {
		assert.Contains(t, err.Error(), part)
	}
}

// What skep config show prints is a file that means the same, and every setting says what
// it is.
func TestPrintedConfigurationLoads(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Dir = "/d"
	c.Tenants = map[string]TenantConfig{"t": {Bytes: 3 << 30}}
	c.Credentials = []CredentialConfig{{Name: "x", Tenant: "t", Rights: []string{"read"}, TokenSHA256: strings.Repeat("ab", 32)}}
	var out bytes.Buffer
	require.NoError(t, c.Print(&out))
	again, err := Load(write(t, "printed.yaml", out.String()), nil, nil)
	require.NoError(t, err, out.String())
	c.TLS.Plain, again.TLS.Plain = nil, nil
	assert.Equal(t, c, again)
	for _, f := range fields(c) {
		assert.NotEmpty(t, f.doc, f.path)
		assert.Contains(t, out.String(), f.doc)
	}
}

// Files that would take memory out of proportion are refused: of equal keys the decoder lists
// each pair, aliases multiply, and much of nothing is much.
func TestConfigurationsThatAreTooMuch(t *testing.T) {
	t.Parallel()
	nines := "[*a" + strings.Repeat(",*a", 8) + "]"
	for name, text := range map[string]string{
		"pairs of equal keys": strings.Repeat("z: 1\n", 15),
		"values with those of aliases": "a: &a [0,0]\nb: &b " + nines + "\nc: &c " + strings.ReplaceAll(nines, "*a", "*b") + "\nd: &d " +
			strings.ReplaceAll(nines, "*a", "*c") + "\ne: &e " + strings.ReplaceAll(nines, "*a", "*d") + "\nf: " + strings.ReplaceAll(nines, "*a", "*e"),
		"marks of values":               "x: [" + strings.Repeat(",", maxValues),
		"at most 10000":                 "credentials: [" + strings.Repeat("{},", maxKeys) + "{}]",
		"redis.lockstep, each":          "tls: {plain: [" + strings.Repeat("listen,", 5) + "]}",
		"400 problems more":             "credentials: [" + strings.Repeat("{x: 1},", maxProblems+400) + "]",
		"mapping key \"z\" already def": "z: 1\nz: 2",
	} {
		_, err := Load(write(t, "much.yaml", text), nil, nil)
		require.ErrorIs(t, err, skep.Invalid, name)
		assert.Contains(t, err.Error(), name)
	}
}

// FuzzConfig: any file gives a configuration or an error, and never a panic; it takes at most twice
// the memory it may.
func FuzzConfig(f *testing.F) {
	var out bytes.Buffer
	require.NoError(f, Default().Print(&out))
	f.Add(out.Bytes())
	f.Add([]byte("credentials: [{name: a}]\ntenants: {x: {bytes: 1GiB}}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("a: &a [1,2,3]\nb: &b [*a,*a,*a]\ntls: {plain: *b}\ntenants: {x: &x {bytes: 1}, y: {<<: *x}}"))
	f.Add([]byte("z: 1\nz: 1\nz: 1\ntls: {plain: [[],[],[]], x: 1}\ncredentials: [{x: 1},{x: 1}]"))
	f.Add([]byte("[[[[[[[[{{{{a}}}}"))
	f.Add([]byte("store: 1\nlimits: [1]\ntls: {plain: {}}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := Default()
		e := measure(in)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		wrong := c.merge("fuzz", in)
		runtime.ReadMemStats(&after)
		const slack = 256 << 10 // of measuring, and of a parser of nothing
		if made := int64(after.TotalAlloc - before.TotalAlloc); made > 2*e.memory()+slack {
			t.Fatalf("%d bytes made of a file of %d, which may take %d", made, len(in), e.memory())
		}
		for _, cc := range c.Credentials {
			if cc.TokenFile != "" {
				return // would read what the input names
			}
		}
		if c.TLS.Cert != "" || c.TLS.Key != "" || c.TLS.ClientCA != "" {
			return
		}
		if len(wrong) == 0 && len(c.problems()) == 0 {
			var out bytes.Buffer
			require.NoError(t, c.Print(&out))
			require.Empty(t, Default().merge("printed", out.Bytes()), out.String())
		}
	})
}

// running is a server under test.
type running struct {
	info httpapi.ServerInfo
	log  *safeLog
	stop func() error
}

type safeLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t *testing.T, c *Config, o Options) *running {
	t.Helper()
	r := &running{log: &safeLog{}}
	o.Log = r.log
	ready := make(chan httpapi.ServerInfo, 1)
	o.Ready = func(i httpapi.ServerInfo) { ready <- i }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c, o) }()
	var once sync.Once
	var err error
	r.stop = func() error {
		once.Do(func() {
			cancel()
			err = <-done
		})
		return err
	}
	t.Cleanup(func() { _ = r.stop() })
	select {
	case r.info = <-ready:
	case err := <-done:
		done <- err
		require.NoError(t, err)
	case <-time.After(2 * time.Minute):
		t.Fatal("does not start")
	}
	return r
}

func (r *running) at(protocol string) string {
	for _, l := range r.info.Listeners {
		if l.Protocol == protocol && !strings.HasPrefix(l.Address, "unix:") {
			return l.Address
		}
	}
	return ""
}

// patient is a client that gives nothing up, however busy the machine.
func patient(addr string) redistest.Options {
	return redistest.Options{Addr: addr, Timeout: time.Minute, Retries: 3}
}

// local is a configuration on free ports and a short socket path.
func local(t *testing.T) *Config {
	c := Default()
	c.Dir = filepath.Join(t.TempDir(), "d")
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c.Unix = filepath.Join(dir, "s")
	c.Listen, c.RESP, c.HTTP = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.FileDevices, c.Store.CapacityBytes, c.Store.DRAMBytes, c.Store.IOBytes, c.Limits.MemoryBytes = 2, 256<<20, 32<<20, 64<<20, 64<<20
	return c
}

func get(t *testing.T, client *http.Client, url, token string) (int, string) {
	r, err := http.NewRequest("GET", url, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(b)
}

// On redis.lockstep a connection ends where one of resp is told of an error, and both reach the same values. With TLS
// it has TLS unless tls.plain names it.
func TestServeLockstep(t *testing.T) {
	t.Parallel()
	assert.NotContains(t, fmt.Sprint(Default().ports()), "lockstep", "there is none unless it is asked for")
	c := local(t)
	c.Redis.Lockstep = "127.0.0.1:0"
	r := start(t, c, Options{})
	ctx := context.Background()
	plain, step := redistest.New(patient(r.at("resp"))), redistest.New(patient(r.at("lockstep")))
	require.NoError(t, step.Set(ctx, "k", []byte("value"), time.Hour))
	got, err := plain.Get(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, "value", string(got))
	var said redistest.Error
	_, err = plain.Do(ctx, "APPEND", "k", "v")
	assert.ErrorAs(t, err, &said)
	_, err = step.Do(ctx, "APPEND", "k", "v")
	assert.ErrorIs(t, err, io.EOF)
	require.NoError(t, plain.Close())
	require.NoError(t, step.Close())
	_, metrics := get(t, http.DefaultClient, "http://"+r.at("http")+"/metrics", "")
	assert.Contains(t, metrics, `skep_resp_lockstep_total{result="hangup"} 1`)
	require.NoError(t, r.stop())

	for _, at := range []string{"no port", "0.0.0.0:1", "127.0.0.1:66000"} {
		c.Redis.Lockstep = at
		assert.ErrorContains(t, errors.Join(c.problems()...), "redis.lockstep", at)
	}
	c.Redis.Lockstep, c.TLS.Plain = None, []string{"listen", "resp", "http", "redis.lockstep"}
	assert.Empty(t, c.problems())
	c.TLS.Plain[0] = "lockstep"
	assert.ErrorContains(t, errors.Join(c.problems()...), "tls.plain")
}

// A server on real devices serves all protocols, drains, and finds everything again.
func TestServeStopAndServeAgain(t *testing.T) {
	t.Parallel()
	c := local(t)
	ctx := context.Background()
	value := make([]byte, 5<<20)
	rand.Read(value)
	for round := range 2 {
		r := start(t, c, Options{Version: "v0"})
		assert.Contains(t, r.log.String(), "no credentials are configured")
		rc := redistest.New(patient(r.at("resp")))
		if round == 0 {
			require.NoError(t, rc.Set(ctx, "k", value, time.Hour))
			require.NoError(t, rc.Set(ctx, "gone", "x", time.Hour))
			_, err := rc.Int(ctx, "DEL", "gone")
			require.NoError(t, err)
		}
		got, err := rc.Get(ctx, "k")
		require.NoError(t, err)
		require.True(t, bytes.Equal(value, got))
		ttl, err := rc.Int(ctx, "TTL", "k")
		require.NoError(t, err)
		assert.Greater(t, ttl, int64(50*60), "an expiry survives a restart")
		n, err := rc.Int(ctx, "DBSIZE")
		require.NoError(t, err)
		assert.Equal(t, int64(1), n)
		require.NoError(t, rc.Close())

		web := "http://" + r.at("http")
		for _, path := range []string{"/healthz", "/readyz", "/metrics", "/api/v1/stats", "/api/v1/segments", "/api/v1/jobs", "/"} {
			code, body := get(t, http.DefaultClient, web+path, "")
			assert.Equal(t, 200, code, "%s: %s", path, body)
		}
		_, metrics := get(t, http.DefaultClient, web+"/metrics", "")
		for _, name := range []string{"skep_call_duration_seconds_bucket", "skep_resp_connections", "skep_wire_connections", "skep_device_bytes_total", `skep_info{backend=`, `skep_namespace_lookup_keys_total{namespace="resp/0",result="hit",tenant="default"}`, `skep_namespace_restored_bytes_total`, "go_goroutines"} {
			assert.Contains(t, metrics, name)
		}
		fi, err := os.Stat(c.Unix)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), fi.Mode().Perm(), "a socket is its owner's")
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, r.stop())
	}
}

func TestASecondServerIsRefused(t *testing.T) {
	t.Parallel()
	c := local(t)
	r := start(t, c, Options{})
	d := *c
	d.Unix = None
	err := Run(context.Background(), &d, Options{Log: io.Discard})
	assert.ErrorIs(t, err, skep.Locked)
	d.Dir = filepath.Join(t.TempDir(), "other")
	d.Unix = c.Unix
	assert.ErrorIs(t, Run(context.Background(), &d, Options{Log: io.Discard}), skep.Locked, "the socket is in use")
	d.RESP = r.at("resp")
	d.Unix = None
	assert.ErrorIs(t, Run(context.Background(), &d, Options{Log: io.Discard}), skep.Invalid, "so is the port")
}

func TestJobsAreSteered(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	defer st.Close()
	ctx := context.Background()
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	for i := range 100 {
		_, err := st.Put(ctx, &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}, Blocks: []skep.Block{{Key: skep.KeyOf([]byte{byte(i)}), Parts: []skep.Part{{Bytes: make([]byte, 2<<20)}}}}})
		require.NoError(t, err)
	}
	js := newJobs(st, Default().logger(io.Discard))
	defer js.close()
	state := func() (string, string) {
		list, err := js.List(ctx)
		require.NoError(t, err)
		return list[1].State, list[1].Detail
	}
	assert.ErrorIs(t, js.Do(ctx, "nonesuch", "start"), skep.NotFound)
	assert.ErrorIs(t, js.Do(ctx, "check", "pause"), skep.Invalid)
	require.NoError(t, js.Do(ctx, "check", "start"))
	require.NoError(t, js.Do(ctx, "check", "pause"))
	s, _ := state()
	assert.Equal(t, "paused", s)
	require.NoError(t, js.Do(ctx, "check", "resume"))
	require.NoError(t, js.Do(ctx, "check", "stop"))
	storetest.Eventually(t, "it stops", func() bool { s, d := state(); return s == "idle" && d == "stopped" })
	require.NoError(t, js.Do(ctx, "check", "start"))
	storetest.Eventually(t, "it ends", func() bool { s, _ := state(); return s == "idle" })
	_, d := state()
	assert.Contains(t, d, "100 blocks read, 200.0 MiB; 0 damaged")
}

// A store on devices offers its own work: it is started, paused and resumed, and what is
// damaged shows.
func TestTheStoresOwnWork(t *testing.T) {
	t.Parallel()
	r := start(t, local(t), Options{})
	rc := redistest.New(patient(r.at("resp")))
	defer rc.Close()
	ctx := context.Background()
	for i := range 20 {
		require.NoError(t, rc.Set(ctx, fmt.Sprint("k", i%10), make([]byte, 4<<20), 0))
	}
	web := "http://" + r.at("http") + "/api/v1/jobs"
	do := func(what string) {
		res, err := http.Post(web+what, "application/json", strings.NewReader("{}"))
		require.NoError(t, err)
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		require.Equal(t, 200, res.StatusCode, "%s: %s", what, b)
	}
	job := func(name string) (j httpapi.Job) {
		_, body := get(t, http.DefaultClient, web, "")
		var list []httpapi.Job
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		for _, x := range list {
			if x.Name == name && len(x.Actions) > 0 {
				return x
			}
		}
		return j
	}
	for _, name := range []string{"flush", "scrub", "compact", "rebalance"} {
		do("/" + name + "/start")
		storetest.Eventually(t, name, func() bool { return job(name).State == "idle" })
		assert.Equal(t, 1.0, job(name).Progress, "%s: %s", name, job(name).Detail)
	}
	assert.Contains(t, job("scrub").Detail, "0 repaired, 0 lost, 0 not read, 0 faults")
	http.DefaultClient.CloseIdleConnections()
}

// Jobs that hold something while they run end their run when paused.
func TestPausingAndResumingAWorkThatRestarts(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	defer st.Close()
	js := &jobs{st: st, log: Default().logger(io.Discard)}
	js.ctx, js.stop = context.WithCancel(context.Background())
	defer js.close()
	runs := make(chan struct{}, 100)
	finish := make(chan struct{})
	js.list = []*job{{name: "move", restarts: true, state: "idle", run: func(ctx context.Context, j *job) error {
		runs <- struct{}{}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-finish:
			return nil
		}
	}}}
	ctx := context.Background()
	state := func() string { l, _ := js.List(ctx); return l[0].State }
	for _, action := range []string{"start", "pause", "resume", "pause", "resume"} {
		require.NoError(t, js.Do(ctx, "move", action), action)
	}
	assert.Equal(t, "running", state())
	require.Eventually(t, func() bool { return len(runs) >= 2 }, time.Minute, time.Millisecond, "it was begun again")
	require.NoError(t, js.Do(ctx, "move", "pause"))
	require.Eventually(t, func() bool { js.mu.Lock(); defer js.mu.Unlock(); return js.list[0].cancel == nil }, time.Minute, time.Millisecond)
	assert.Equal(t, "paused", state())
	require.NoError(t, js.Do(ctx, "move", "stop"))
	assert.Equal(t, "idle", state())
	require.NoError(t, js.Do(ctx, "move", "start"))
	close(finish)
	require.Eventually(t, func() bool { return state() == "idle" }, time.Minute, time.Millisecond)
}

// Keys of Redis clients expire by the time the store keeps, which no change of the machine's clock moves. What clients
// name moments by is the machine's.
func TestKeysOfClientsExpireByTheStoresTime(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	r := start(t, local(t), Options{Clock: func() time.Time { return skep.Steady().Add(time.Duration(passed.Load())) }})
	rc := redistest.New(patient(r.at("resp")))
	defer func() { require.NoError(t, rc.Close()) }()
	require.NoError(t, rc.Set(t.Context(), "soon", "x", time.Hour))
	require.NoError(t, rc.Set(t.Context(), "later", "x", 100*time.Hour))
	passed.Store(int64(50 * time.Hour))
	_, err := rc.Get(t.Context(), "soon")
	require.ErrorIs(t, err, redistest.ErrNil)
	b, err := rc.Get(t.Context(), "later")
	require.NoError(t, err)
	require.Equal(t, "x", string(b))
	inADay := time.Now().Add(24 * time.Hour).Unix() // fifty hours have not passed by the machine's clock
	left, err := rc.Int(t.Context(), "EXPIREAT", "later", inADay)
	require.NoError(t, err)
	require.EqualValues(t, 1, left)
	b, err = rc.Get(t.Context(), "later")
	require.NoError(t, err, "the moment that was named has not come")
	require.Equal(t, "x", string(b))
}
