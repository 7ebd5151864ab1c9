package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/wire/auth"
)

// A token that cannot be read leaves all credentials as they were, and the log does not say
// that they were replaced.
func TestATokenThatCannotBeReadReplacesNothing(t *testing.T) {
	t.Parallel()
	path := write(t, "token", token)
	c := Default()
	c.Dir = t.TempDir()
	c.Credentials = []CredentialConfig{{Name: "op", Tenant: "ops", Rights: []string{"read"}, TokenFile: path}}
	creds, wrong := c.credentials(os.LookupEnv)
	require.Empty(t, wrong)
	dir, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	var log bytes.Buffer
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(&log, nil))}
	require.NoError(t, os.Remove(path))
	s.reload(c, false)
	require.Contains(t, log.String(), "credentials not reloaded")
	require.NotContains(t, log.String(), "msg=reloaded ")
	require.NotContains(t, log.String(), "credentials=")
	require.Contains(t, log.String(), "those in use stay")
	log.Reset()
	require.NoError(t, os.WriteFile(path, []byte(token), 0o600))
	s.reload(c, false)
	require.Contains(t, log.String(), "msg=reloaded credentials=1")
}

// rotate writes a file anew, on any goroutine.
func rotate(t testing.TB, path, text string) {
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

const rotated = "the-token-after-it-0123456789"

// known says whether a token is one that the directory has.
func known(t testing.TB, dir *auth.Directory, token string) bool {
	_, err := dir.Identify(t.Context(), auth.Presented{Token: token})
	return err == nil
}

// rotates is a store that is asked how it stands before anything is served: a token's file changes then.
type rotates struct {
	skep.Store
	once func()
}

func (s rotates) Stats(ctx context.Context) (skep.Stats, error) {
	s.once()
	return s.Store.Stats(ctx)
}

// A token that is replaced while the store is being opened, which may take minutes, is noticed once it is open.
func TestATokenRotatedWhileTheStoreOpens(t *testing.T) {
	t.Parallel()
	path := write(t, "token", token)
	c := local(t)
	c.Credentials = []CredentialConfig{
		{Name: "op", Tenant: "ops", Rights: []string{"read", "write", "admin"}, TokenFile: path},
	}
	st := memstore.New(memstore.Options{})
	defer st.Close()
	r := start(t, c, Options{Store: rotates{st, sync.OnceFunc(func() { rotate(t, path, rotated) })}})
	o := patient(r.at("resp"))
	o.Password, o.Retries = rotated, 0
	rc := redistest.New(o)
	defer rc.Close()
	taken := func() bool { return rc.Ping(t.Context()) == nil }
	storetest.Eventually(t, "the token that is in the file now is taken", taken)
	require.NoError(t, r.stop())
}

// A file that could not be read, and that looks afterwards as it did before, is read again after a while.
func TestAFileThatCouldNotBeReadIsTriedAgain(t *testing.T) {
	t.Parallel()
	path := write(t, "token", token)
	c := Default()
	c.Credentials = []CredentialConfig{{Name: "op", Tenant: "ops", Rights: []string{"read"}, TokenFile: path}}
	creds, wrong := c.credentials(os.LookupEnv)
	require.Empty(t, wrong)
	synctest.Test(t, func(t *testing.T) {
		dir, err := auth.New(creds, nil, nil)
		require.NoError(t, err)
		s := &server{c: c, dir: dir, log: slog.New(slog.DiscardHandler), seen: fingerprint(c)}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go s.follow(ctx)
		at := time.Unix(1, 0)
		put := func(text string) {
			rotate(t, path, text)
			require.NoError(t, os.Chtimes(path, at, at))
		}
		put(strings.Repeat(" ", len(rotated)))
		time.Sleep(2 * reloadInterval)
		require.True(t, known(t, dir, token), "what could not be read changes nothing")
		put(rotated)
		time.Sleep(2 * reloadAgain)
		require.True(t, known(t, dir, rotated))
		require.False(t, known(t, dir, token))
	})
}

// Settings without credentials are not taken; what the ones in use name is read again all the same.
func TestSettingsWithoutCredentialsKeepNoFile(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("server")
	c := Default()
	c.TLS = TLSConfig{Cert: filepath.Join(p.dir, "server.pem"), Key: filepath.Join(p.dir, "server.key")}
	path := write(t, "token", token)
	c.Credentials = []CredentialConfig{{Name: "op", Tenant: "t", Rights: []string{"read"}, TokenFile: path}}
	creds, wrong := c.credentials(os.LookupEnv)
	require.Empty(t, wrong)
	dir, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	next := *c
	next.Credentials = nil
	var log bytes.Buffer
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.o.Reload = func() (*Config, error) { return &next, nil }
	require.NoError(t, s.cert.load(&c.TLS, s.log))
	before := s.cert.now.Load()
	p.issue("server")
	inUse, _, _ := s.reload(c, true)
	require.Equal(t, c, inUse)
	require.True(t, known(t, dir, token))
	require.NotSame(t, before, s.cert.now.Load())
	require.Contains(t, log.String(), "does not go on without")
}

// Settings that take TLS away need a restart: until then the certificate in use is read again when its file changes.
func TestACertificateThatSettingsTakeAwayIsReadAgain(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("server")
	c := Default()
	c.TLS = TLSConfig{Cert: filepath.Join(p.dir, "server.pem"), Key: filepath.Join(p.dir, "server.key")}
	dir, err := auth.New(nil, nil, nil)
	require.NoError(t, err)
	var log bytes.Buffer
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.o.Reload = func() (*Config, error) { return Default(), nil }
	require.NoError(t, s.cert.load(&c.TLS, s.log))
	inUse, seen, _ := s.reload(c, true)
	require.Contains(t, log.String(), "tls.cert, tls.key")
	before := s.cert.now.Load()
	p.issue("server")
	require.NotEqual(t, seen, fingerprint(inUse), "it is looked at")
	s.reload(inUse, false)
	require.NotSame(t, before, s.cert.now.Load())
	require.Equal(t, 1, strings.Count(log.String(), "need a restart"))
}

// lines has something done at each line of a log.
type lines func(line string)

func (f lines) Write(b []byte) (int, error) {
	f(string(b))
	return len(b), nil
}

// So is one that is replaced once more just after a reload has read it.
func TestATokenRotatedTwiceInOneReload(t *testing.T) {
	t.Parallel()
	path := write(t, "token", token)
	c := Default()
	c.Credentials = []CredentialConfig{{Name: "op", Tenant: "ops", Rights: []string{"read"}, TokenFile: path}}
	creds, wrong := c.credentials(os.LookupEnv)
	require.Empty(t, wrong)
	dir, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	more := sync.OnceFunc(func() { rotate(t, path, rotated) })
	log := lines(func(line string) {
		if strings.Contains(line, "msg=reloaded ") {
			more()
		}
	})
	again := make(chan os.Signal, 1)
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(log, nil)), seen: fingerprint(c)}
	s.o.Again = again
	crew := storetest.NewCrew(t)
	ctx, stop := context.WithCancel(t.Context())
	crew.Go(func(testing.TB) { s.follow(ctx) })
	again <- os.Interrupt
	storetest.Eventually(t, "the token that is in the file now is taken", func() bool { return known(t, dir, rotated) })
	require.False(t, known(t, dir, token))
	stop()
	crew.Wait()
}

// A certificate that cannot be read any more leaves the one in use, and takes nothing back of what a reload
// says of credentials: one that was removed stays out when the next file changes.
func TestACertificateThatCannotBeReadBringsNoCredentialBack(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("server")
	c := Default()
	c.TLS = TLSConfig{Cert: filepath.Join(p.dir, "server.pem"), Key: filepath.Join(p.dir, "server.key")}
	c.Credentials = []CredentialConfig{
		{Name: "stays", Tenant: "t", Rights: []string{"read"}, TokenFile: write(t, "stays", token)},
		{Name: "goes", Tenant: "t", Rights: []string{"read"}, TokenFile: write(t, "goes", rotated)},
	}
	creds, wrong := c.credentials(os.LookupEnv)
	require.Empty(t, wrong)
	dir, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	next := *c
	next.Credentials = c.Credentials[:1]
	var log bytes.Buffer
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.o.Reload = func() (*Config, error) { return &next, nil }
	require.NoError(t, s.cert.load(&c.TLS, s.log))
	before := s.cert.now.Load()
	reload := func(c *Config, asked bool) *Config {
		next, _, _ := s.reload(c, asked)
		return next
	}

	rotate(t, c.TLS.Cert, "half of it")
	inUse := reload(c, true)
	require.Contains(t, log.String(), "certificate not reloaded")
	require.NotContains(t, log.String(), "msg=reloaded ")
	require.Same(t, before, s.cert.now.Load())
	require.False(t, known(t, dir, rotated))
	p.issue("server")
	reload(inUse, false)
	require.False(t, known(t, dir, rotated), "it was removed")
	require.True(t, known(t, dir, token))
	require.NotSame(t, before, s.cert.now.Load())
}

// A reload takes what it can and names the rest: nobody is left to believe that a setting is in use.
func TestAReloadSaysWhatItDoesNotTake(t *testing.T) {
	t.Parallel()
	file := write(t, "skep.yaml", "tenants: {t: {bytes: 64MiB}}\n")
	c := local(t)
	load := func() (*Config, error) {
		next := *c
		next.Tenants = nil
		if wrong := next.merge(file, []byte(read(t, file))); len(wrong) > 0 {
			return nil, wrong[0]
		}
		return &next, nil
	}
	first, err := load()
	require.NoError(t, err)
	again := make(chan os.Signal)
	r := start(t, first, Options{Reload: load, Again: again})
	shares := func() string {
		_, body := get(t, http.DefaultClient, "http://"+r.at("http")+"/metrics", "")
		return regexp.MustCompile(`skep_tenant_bytes\{tenant="t",what="share"\} .*`).FindString(body)
	}
	require.Contains(t, shares(), "6.7108864e+07")
	require.Contains(t, r.log.String(), "is called share", "the old name is read, with a word")
	require.NoError(t, os.WriteFile(file, []byte("tenants: {t: {share: 128MiB}}\nstore: {capacity_bytes: 1GiB, dram_bytes: 1GiB}\nlisten: 127.0.0.1:1\n"), 0o600))
	again <- os.Interrupt
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "msg=reloaded ") }, time.Minute, 10*time.Millisecond)
	require.Contains(t, r.log.String(), `settings="listen, store.capacity_bytes, store.dram_bytes"`)
	require.Contains(t, shares(), "1.34217728e+08", "shares are the store's, too")

	require.NoError(t, os.WriteFile(file, []byte("tenants: {t: {share: 128MiB}}\n"), 0o600))
	again <- os.Interrupt
	require.Eventually(t, func() bool { return strings.Count(r.log.String(), "msg=reloaded ") == 2 }, time.Minute, 10*time.Millisecond)
	require.Equal(t, 1, strings.Count(r.log.String(), "need a restart"), "what is as it was is not named")
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, r.stop())
}

// Calls leave no line in the log at level info, whether memory answers or drives do.
func TestCallsAreNotLogged(t *testing.T) {
	t.Parallel()
	c := local(t)
	c.Store.DRAMBytes = 0
	r := start(t, c, Options{})
	rc := redistest.New(patient(r.at("resp")))
	call := func(i int) {
		key := fmt.Sprint("k", i)
		require.NoError(t, rc.Set(t.Context(), key, make([]byte, 300<<10), 0))
		_, err := rc.Get(t.Context(), key)
		require.NoError(t, err)
	}
	call(0)
	before := r.log.String()
	for i := range 10 {
		call(i)
	}
	require.Equal(t, before, r.log.String())
	require.NoError(t, rc.Close())
	require.NoError(t, r.stop())
}

// What a file of settings names by relative paths lies in the file's directory, also when a server that runs in another
// one is told to read its settings again.
func TestAReloadTakesRelativePathsFromTheFilesDirectory(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	at := func(name string) string { return filepath.Join(p.dir, name) }
	const last = "the-last-token-0123456789"
	for name, text := range map[string]string{"token": token, "token-2": rotated} {
		rotate(t, at(name), text)
	}
	first := p.issue("server")
	second := p.issue("server-2")
	settings := func(n string) {
		rotate(t, at("skep.yaml"), fmt.Sprintf(`
dir: d
file_devices: 1
unix: none
listen: none
resp: 127.0.0.1:0
http: none
store: {capacity_bytes: 128MiB, dram_bytes: 32MiB, io_bytes: 64MiB}
limits: {memory_bytes: 64MiB}
tls: {cert: server%s.pem, key: server%[1]s.key}
credentials: [{name: op, tenant: ops, rights: [read, write, admin], token_file: token%[1]s}]
`, n))
	}
	settings("")
	load := func() (*Config, error) { return Load(at("skep.yaml"), nil, nil) }
	c, err := load()
	require.NoError(t, err)
	st := memstore.New(memstore.Options{})
	defer st.Close()
	again := make(chan os.Signal)
	r := start(t, c, Options{Store: st, Reload: load, Again: again})
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	takes := func(token string) bool {
		o := patient(r.at("resp"))
		o.TLS, o.Password, o.Retries = &tls.Config{RootCAs: pool}, token, 0
		rc := redistest.New(o)
		defer rc.Close()
		return rc.Ping(t.Context()) == nil
	}
	shows := func(cert tls.Certificate) bool {
		conn, err := tls.Dial("tcp", r.at("resp"), &tls.Config{RootCAs: pool})
		require.NoError(t, err)
		defer conn.Close()
		return bytes.Equal(conn.ConnectionState().PeerCertificates[0].Raw, cert.Certificate[0])
	}
	reload := func() {
		t.Helper()
		before := strings.Count(r.log.String(), "msg=reloaded ")
		again <- os.Interrupt
		storetest.Eventually(t, "it is reloaded", func() bool {
			return strings.Count(r.log.String(), "msg=reloaded ") > before
		})
	}
	require.True(t, takes(token) && shows(first))

	settings("-2")
	reload()
	require.True(t, takes(rotated), "the token of a file that is named from now on")
	require.False(t, takes(token))
	require.True(t, shows(second), "and the certificate")

	rotate(t, at("token-2"), last)
	third := p.issue("server-2")
	reload()
	require.True(t, takes(last), "the token that is in the file now")
	require.False(t, takes(rotated))
	require.True(t, shows(third), "and the certificate")
	require.NotContains(t, r.log.String(), "not reloaded")
	require.NotContains(t, r.log.String(), "need a restart")
	require.NoError(t, r.stop())
}

// A map of the cluster that could not be read is not noted as seen.
func TestAMapThatCouldNotBeReadIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := &server{cluster: &clustermap.Map{}, log: slog.New(slog.DiscardHandler)}
	require.False(t, s.replaceMap(&Config{Cluster: filepath.Join(t.TempDir(), "map.yaml")}))
	require.True(t, s.replaceMap(&Config{}), "there is none to be read")
}
