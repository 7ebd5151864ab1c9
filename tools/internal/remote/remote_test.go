package remote_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/tools/internal/remote"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/wire/auth"
)

const (
	engineToken   = "a-token-of-the-engine"
	operatorToken = "a-token-of-the-operator"
)

// secured has a server want tokens, and speak TLS on TCP but for the port of RESP.
func secured(t *testing.T, cert, key string) func(*serve.Config) {
	return func(c *serve.Config) {
		c.TLS.Cert, c.TLS.Key, c.TLS.Plain = cert, key, []string{"resp"}
		c.Credentials = []serve.CredentialConfig{
			{Name: "engine", Tenant: "prod", Rights: []string{"read", "write"}, TokenFile: file(t, "engine", []byte(engineToken))},
			{Name: "operator", Tenant: "*", Rights: []string{"read", "write", "admin"}, TokenFile: file(t, "operator", []byte(operatorToken))},
		}
	}
}

// How many copies a Redis database has is the server's to say, whoever writes to it first.
func TestTheServerDecidesTheCopiesOfValues(t *testing.T) {
	t.Parallel()
	s := begin(t, nil, func(c *serve.Config) { c.FileDevices, c.Redis.Copies = 2, 2 })
	at(t, s.at["wire"], "put", "greeting", "--text", "hello", "-o", "json").OK(t)
	list := at(t, s.at["wire"], "ns", "list", "-o", "json").OK(t)["namespaces"].([]any)
	require.Len(t, list, 2)
	for _, n := range list {
		assert.EqualValues(t, 2, n.(map[string]any)["copies"], "%v", n)
	}
}

// What a first user does, on a store on a drive, over TCP, TLS and a Unix socket: each finds what the others put.
func TestValuesOverEveryWay(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	open, closed := begin(t, nil, nil), begin(t, nil, secured(t, cert, key))
	token := file(t, "token", []byte(engineToken+"\n"))
	secure := strings.Replace(closed.at["wire"], "skep://", "skeps://", 1)
	for name, way := range map[string]struct {
		in, out []string
		redis   redistest.Options
	}{
		"TCP, then the socket": {[]string{"--server", open.at["wire"]}, []string{"--server", open.at["unix"]},
			redistest.Options{Addr: strings.TrimPrefix(open.at["resp"], "skep://")}},
		"TLS, then the socket": {[]string{"--server", secure, "--ca", cert, "--token-file", token}, []string{"--server", closed.at["unix"], "--token-file", token},
			redistest.Options{Addr: strings.TrimPrefix(closed.at["resp"], "skep://"), Password: engineToken}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(way []string, args ...string) string {
				t.Helper()
				o := withInput(t.Context(), strings.NewReader("from a pipe"), append(args, way...)...)
				require.Zero(t, o.Code, "%v: %s", args, o.Stderr)
				return o.Stdout
			}
			rc := redistest.New(way.redis)
			defer rc.Close()
			large := make([]byte, 20<<20+3)
			_, _ = rand.Read(large)
			run(way.in, "put", "greeting", "--text", "hello")
			assert.Equal(t, "hello", run(way.out, "get", "greeting"))
			run(way.in, "put", "large", file(t, "large", large))
			to := filepath.Join(t.TempDir(), "out")
			run(way.out, "get", "large", "--to", to)
			got, err := os.ReadFile(to)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(large, got))
			for _, dir := range []string{filepath.Dir(to), filepath.Dir(to) + "/", to + "/"} {
				o := withInput(t.Context(), strings.NewReader(""),
					append([]string{"get", "greeting", "--to", dir}, way.out...)...)
				assert.Equal(t, command.Input, o.Code, o.Stderr)
				assert.Contains(t, o.Stderr, "--to", dir)
			}
			run(way.in, "put", "piped", "-")
			assert.Equal(t, "from a pipe", run(way.out, "get", "piped"))

			b, err := rc.Get(t.Context(), "greeting")
			require.NoError(t, err)
			assert.Equal(t, "hello", string(b), "Redis's GET finds it")
			require.NoError(t, rc.Set(t.Context(), "\x00\xff", []byte("of Redis"), 0))
			assert.Equal(t, "of Redis", run(way.out, "get", "00ff", "--hex"))

			var list struct {
				Keys []struct {
					Key   string
					Hex   bool
					Bytes int64
				}
				More bool
			}
			require.NoError(t, json.Unmarshal([]byte(run(way.out, "ls", "-o", "json")), &list))
			require.Len(t, list.Keys, 4)
			assert.Equal(t, "00ff", list.Keys[0].Key)
			assert.True(t, list.Keys[0].Hex)
			assert.EqualValues(t, len(large), list.Keys[2].Bytes)
			assert.Contains(t, run(way.out, "ls", "gr"), "greeting")
			assert.NotContains(t, run(way.out, "ls", "gr"), "large")
			assert.Equal(t, 3, strings.Count(run(way.out, "ls", "-o", "jsonl", "--limit", "3"), "\n"))
			assert.Equal(t, 21, strings.Count(run(way.out, "ls", "--ns", "resp/0/data", "-o", "jsonl"), `"bytes":-1`), "pieces of the large one")
			assert.Contains(t, run(way.in, "del", "greeting", "none"), "1 of 2")
			o := withInput(t.Context(), strings.NewReader(""), append([]string{"get", "greeting"}, way.out...)...)
			assert.Equal(t, command.NotFound, o.Code)
			assert.Empty(t, o.Stdout)
		})
	}
}

// Of a cluster one node is named, and the values are those of all.
func TestValuesOfACluster(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	text := "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\nnodes:\n"
	for i, name := range []string{"a", "b"} {
		text += fmt.Sprintf("  - {id: %d, name: %s, addr: %q}\n", i+1, name, "unix:"+filepath.Join(dir, name))
	}
	cluster := file(t, "map.yaml", []byte(text))
	var nodes []*server
	for _, name := range []string{"a", "b"} {
		nodes = append(nodes, begin(t, memory(t), func(c *serve.Config) {
			c.Cluster, c.Node, c.Listen, c.Unix = cluster, name, serve.None, filepath.Join(dir, name)
		}))
	}
	run := func(node int, args ...string) string {
		t.Helper()
		o := at(t, nodes[node].at["unix"], args...)
		require.Zero(t, o.Code, "%v: %s", args, o.Stderr)
		return o.Stdout
	}
	large := make([]byte, 10<<20)
	_, _ = rand.Read(large)
	for i := range 8 {
		run(0, "put", fmt.Sprint("k", i), "--text", fmt.Sprint("v", i))
	}
	run(0, "put", "large", file(t, "large", large))
	for i := range 8 {
		assert.Equal(t, fmt.Sprint("v", i), run(1, "get", fmt.Sprint("k", i)))
	}
	assert.Equal(t, string(large), run(1, "get", "large"))
	assert.Equal(t, 9, strings.Count(run(1, "ls", "-o", "jsonl"), "\n"))
	assert.Contains(t, run(1, "del", "k0", "k1", "none"), "2 of 3")
	var all remote.SpacesResult
	require.NoError(t, json.Unmarshal([]byte(run(1, "ns", "list", "--json")), &all))
	require.Len(t, all.Namespaces, 2)
	for _, n := range all.Namespaces {
		require.Zero(t, n.ID)
		if n.Name == "resp/0" {
			require.EqualValues(t, 7, n.Blocks, "of both nodes")
		}
	}
	require.EqualValues(t, 7, at(t, nodes[1].at["unix"], "ns", "show", "resp/0", "--json").OK(t)["blocks"])
	require.Equal(t, command.Input, at(t, nodes[1].at["unix"], "ns", "show", "1").Code)
	require.EqualValues(t, 7, at(t, nodes[1].at["unix"], "ns", "delete", "resp/0", "--yes", "--json").OK(t)["blocks"])
	require.NotContains(t, run(0, "ns", "list"), "resp/0 ")
	run(0, "put", "k", "--text", "v")
	run(1, "purge", "--ns", "0", "--yes")
	require.Empty(t, run(0, "ls", "-o", "jsonl"))
	nodes[0].stop()
	list := nodes[0].at["unix"] + "," + nodes[1].at["unix"]
	require.Equal(t, nodes[1].at["unix"], at(t, list, "status", "--json").OK(t)["server"], "the first is away")
	o := at(t, nodes[1].at["unix"], "ls")
	assert.Equal(t, command.TryAgain, o.Code)
	assert.Contains(t, o.Stderr, "node is a")
	o = at(t, nodes[1].at["unix"], "purge", "--ns", "0", "--yes")
	assert.Equal(t, command.TryAgain, o.Code)
	assert.Contains(t, o.Stderr, "node is a", "it has its blocks yet")
}

// A node that repairs by an older map than the asked one's has not moved what the newer map has elsewhere.
func TestARepairByAnOlderMapIsNone(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	text := "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\nepoch: %d\nnodes:\n"
	for i, name := range []string{"a", "b"} {
		text += fmt.Sprintf("  - {id: %d, name: %s, addr: %q}\n", i+1, name, "unix:"+filepath.Join(dir, name))
	}
	var asked *server
	for name, epoch := range map[string]int{"a": 7, "b": 5} {
		cluster := file(t, "map.yaml", []byte(fmt.Sprintf(text, epoch)))
		s := begin(t, memory(t), func(c *serve.Config) {
			c.Cluster, c.Node, c.Listen, c.Unix = cluster, name, serve.None, filepath.Join(dir, name)
		})
		if name == "a" {
			asked = s
		}
	}
	o := at(t, asked.at["unix"], "cluster", "repair", "--json")
	require.Equal(t, command.Faults, o.Code, o.Stderr)
	var r remote.RepairResult
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &r))
	require.Empty(t, r.Nodes[0].Error)
	require.EqualValues(t, 7, r.Nodes[0].Epoch)
	require.Contains(t, r.Nodes[1].Error, "epoch 5, and the asked node has epoch 7")
}

// Of several servers the first that answers is asked. Several that are of no cluster are several stores, which hold no
// values together.
func TestSeveralServersAreNamed(t *testing.T) {
	t.Parallel()
	a, b := begin(t, memory(t), nil), begin(t, memory(t), nil)
	away := "unix://" + filepath.Join(t.TempDir(), "s")
	list := away + "," + a.at["unix"] + ",skep://127.0.0.1:1"
	s := at(t, list, "status", "--json").OK(t)
	require.Equal(t, a.at["unix"], s["server"])

	both := a.at["unix"] + "," + b.at["unix"]
	for _, args := range [][]string{{"put", "k", "--text", "v"}, {"get", "k"}, {"ls"}, {"ns", "list"}} {
		o := at(t, both, args...)
		assert.Equal(t, command.Input, o.Code, "%v: %s", args, o.Stderr)
		assert.Contains(t, o.Stderr, "several stores")
	}
	o := at(t, away+",unix:///nonesuch/s", "ls")
	assert.Equal(t, command.TryAgain, o.Code)
	assert.Contains(t, o.Stderr, "one that answers")
	assert.Contains(t, o.Stderr, "start a server")
	o = at(t, a.at["unix"]+",", "ls")
	assert.Equal(t, command.Input, o.Code)
	assert.Contains(t, o.Stderr, "--server")
}

// Namespaces are shown, counted and deleted; nothing goes without a yes.
func TestNamespacesAndPurges(t *testing.T) {
	t.Parallel()
	s := begin(t, memory(t), nil)
	to := s.at["wire"]
	for _, ns := range []string{"0", "resp/3"} {
		require.Zero(t, at(t, to, "put", "k", "--text", "v", "--ns", ns).Code)
	}
	assert.Contains(t, at(t, to, "ns", "list").Stdout, "resp/3/data")
	assert.Equal(t, 4, strings.Count(at(t, to, "ns", "list", "-o", "jsonl").Stdout, "\n"))
	assert.EqualValues(t, 1, at(t, to, "ns", "show", "resp/3", "--json").OK(t)["blocks"])
	assert.Equal(t, command.NotFound, at(t, to, "ns", "show", "none").Code)
	assert.Equal(t, command.Input, at(t, to, "purge").Code)
	assert.Equal(t, command.Input, at(t, to, "purge", "--ns", "0", "--tenant", "default").Code)
	assert.Equal(t, command.NotFound, at(t, to, "purge", "--ns", "7", "--yes").Code)

	for _, answer := range []string{"", "n\n", "what\n"} {
		o := withInput(t.Context(), strings.NewReader(answer), "purge", "--tenant", "default", "--server", to)
		assert.Equal(t, command.Input, o.Code)
		assert.Contains(t, o.Stderr, "2 blocks in 4 namespaces?")
		require.Equal(t, "v", at(t, to, "get", "k").Stdout)
	}
	o := withInput(t.Context(), strings.NewReader("y\n"), "purge", "--ns", "3", "--server", to)
	require.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, command.NotFound, at(t, to, "get", "k", "--ns", "3").Code)
	require.Equal(t, "v", at(t, to, "get", "k").Stdout)
	assert.EqualValues(t, 1, at(t, to, "ns", "delete", "resp/0", "--yes", "--json").OK(t)["blocks"])
	assert.Equal(t, command.NotFound, at(t, to, "get", "k").Code)
}

func TestStatus(t *testing.T) {
	t.Parallel()
	s := begin(t, nil, nil)
	require.Zero(t, at(t, s.at["unix"], "put", "k", "--text", "v").Code)
	r := at(t, s.at["unix"], "status", "--wait", "ready", "-o", "json").OK(t)
	assert.Equal(t, "ok", r["state"])
	assert.Len(t, r["devices"], 1)
	assert.Empty(t, r["unhealthy"])
	assert.NotEmpty(t, r["jobs"])
	text := at(t, s.at["wire"], "status")
	assert.Zero(t, text.Code, text.Stderr)
	assert.Contains(t, text.Stdout, "1, all well")
	top := at(t, s.at["wire"], "top", "--once", "--interval", "20ms", "--json").OK(t)
	assert.EqualValues(t, 1, top["stats"].(map[string]any)["put_blocks"])
	assert.Equal(t, command.Input, at(t, s.at["wire"], "status", "--wait", "rain").Code)
}

// fenced is a store one of whose drives is not well.
type fenced struct{ *memstore.Store }

func (f fenced) Stats(ctx context.Context) (skep.Stats, error) {
	st, err := f.Store.Stats(ctx)
	st.Devices = []skep.DeviceStats{{Index: 0, State: "in use"}, {Index: 1, Path: "/dev/nvme1n1", State: "fenced: errors"}}
	return st, err
}

func TestStatusOfWhatIsNotWell(t *testing.T) {
	t.Parallel()
	s := begin(t, fenced{memory(t)}, nil)
	o := at(t, s.at["wire"], "status")
	assert.Equal(t, command.Faults, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, "/dev/nvme1n1")
	assert.NotRegexp(t, `(?m)^state +ok`, o.Stdout)
}

// renamed is a store that has other drives than it was told to open.
type renamed struct{ *memstore.Store }

func (r renamed) Stats(ctx context.Context) (skep.Stats, error) {
	st, err := r.Store.Stats(ctx)
	st.ToName = []string{"/dev/nvme1n1", "/dev/nvme2n1"}
	return st, err
}

// A server whose settings name other drives than its store has is well, and status says what to write there.
func TestStatusSaysWhichDrivesToName(t *testing.T) {
	t.Parallel()
	s := begin(t, renamed{memory(t)}, nil)
	o := at(t, s.at["wire"], "status")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, "write devices: [/dev/nvme1n1, /dev/nvme2n1]")
	assert.Equal(t, []any{"/dev/nvme1n1", "/dev/nvme2n1"}, at(t, s.at["wire"], "status", "--json").OK(t)["to_name"])
	s = begin(t, memory(t), nil)
	assert.NotContains(t, at(t, s.at["wire"], "status").Stdout, "settings")
}

// roomy is a store whose room is known, and whose blocks have one copy or two.
type roomy struct{ *memstore.Store }

func (r roomy) Stats(ctx context.Context) (skep.Stats, error) {
	st, err := r.Store.Stats(ctx)
	st.RoomBytes = 300e6
	return st, err
}

// What a store has room for is told with every copy counted, and with the copies that its namespaces have.
func TestStatusSaysWhatFits(t *testing.T) {
	t.Parallel()
	m := memory(t)
	for i, copies := range []int{2, 1, 2} {
		_, err := m.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: string(rune('a' + i)),
			Copies: copies, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
		require.NoError(t, err)
	}
	s := begin(t, roomy{m}, nil)
	r := at(t, s.at["wire"], "status", "--json").OK(t)
	assert.EqualValues(t, 300e6, r["room_bytes"])
	once, twice := map[string]any{"copies": 1., "bytes": 300e6}, map[string]any{"copies": 2., "bytes": 150e6}
	assert.Equal(t, []any{once, twice}, r["fits"])
	text := at(t, s.at["wire"], "status").Stdout
	assert.Contains(t, text, "300.00 MB of payload at most, every copy counted; 150.00 MB of blocks with 2 copies")
}

// full is a store that takes no more.
type full struct{ *memstore.Store }

func (full) Put(_ context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	out := make([]skep.PutResult, len(r.Blocks))
	for i := range out {
		out[i] = skep.PutResult{Outcome: skep.Declined, Reason: skep.Full}
	}
	return out, nil
}

// What keeps a command from its work is told in the words of its flags, with what to do and the exit code of its kind.
func TestEveryCauseHasItsCodeAndHint(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	other, _ := certificate(t)
	open, closed := begin(t, full{memory(t)}, nil), begin(t, memory(t), secured(t, cert, key))
	secure := func(s string) string { return strings.Replace(s, "skep://", "skeps://", 1) }
	engine, wrong := file(t, "engine", []byte(engineToken)), file(t, "wrong", []byte("no-token-of-the-server"))
	away, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, away.Close())
	none := filepath.Join(t.TempDir(), "none")
	for what, c := range map[string]struct {
		args []string
		code int
		next string
	}{
		"a server that is away":             {[]string{"get", "k", "--server", away.Addr().String()}, command.TryAgain, "start a server (skep serve"},
		"a socket that is not there":        {[]string{"get", "k", "--server", "unix://" + none}, command.TryAgain, "start a server (skep serve"},
		"waiting for a server that is away": {[]string{"status", "--wait", "ready", "--timeout", "10ms", "--server", away.Addr().String()}, command.TryAgain, "--timeout waits longer"},
		"the port of HTTP":                  {[]string{"get", "k", "--server", open.at["http"]}, command.Input, "that is the HTTP port"},
		"the port of HTTP, with TLS":        {[]string{"get", "k", "--server", secure(closed.at["http"]), "--ca", cert}, command.Input, "that is the HTTP port"},
		"the port of Redis":                 {[]string{"get", "k", "--server", open.at["resp"]}, command.Input, "that is the Redis port"},
		"a URL of HTTP":                     {[]string{"get", "k", "--server", "http://127.0.0.1:7422"}, command.Input, ""},
		"no port there can be":              {[]string{"get", "k", "--server", "127.0.0.1:99999"}, command.Input, ""},
		"waiting for no port there can be": {[]string{"status", "--wait", "ready", "--server", "127.0.0.1:99999"},
			command.Input, ""},
		"the cluster of what is no node": {[]string{"cluster", "status", "--server", open.at["wire"]},
			command.Input, "name a node of the cluster"},
		"the cluster of what is away": {[]string{"cluster", "status", "--server", away.Addr().String()},
			command.TryAgain, "start a server (skep serve"},
		"no server's name":                    {[]string{"get", "k", "--server", "skep://"}, command.Input, ""},
		"TLS to a server without":             {[]string{"get", "k", "--server", secure(open.at["wire"])}, command.Input, "write skep://"},
		"no TLS to a server with":             {[]string{"get", "k", "--server", closed.at["wire"]}, command.Input, "write skeps://"},
		"a certificate nobody vouches for":    {[]string{"get", "k", "--server", secure(closed.at["wire"])}, command.Input, "name it with --ca"},
		"another certificate":                 {[]string{"get", "k", "--server", secure(closed.at["wire"]), "--ca", other}, command.Input, "name it with --ca"},
		"certificates that are none":          {[]string{"get", "k", "--server", secure(closed.at["wire"]), "--ca", wrong}, command.Input, ""},
		"no token":                            {[]string{"get", "k", "--server", closed.at["unix"]}, command.Denied, "--token-file"},
		"a wrong token":                       {[]string{"get", "k", "--server", closed.at["unix"], "--token-file", wrong}, command.Denied, "the token in " + wrong},
		"a file of a token that is not there": {[]string{"get", "k", "--server", closed.at["unix"], "--token-file", none}, command.Input, ""},
		"a right that is not there":           {[]string{"status", "--server", closed.at["unix"], "--token-file", engine}, command.Denied, "lacks the right"},
		"a purge without the right":           {[]string{"purge", "--tenant", "prod", "--yes", "--server", closed.at["unix"], "--token-file", engine}, command.NotFound, "skep ns list"},
		"a key that is not there":             {[]string{"get", "k", "--server", open.at["wire"]}, command.NotFound, "skep ls"},
		"keys that are not there":             {[]string{"del", "k", "l", "--server", open.at["wire"]}, command.NotFound, ""},
		"a full store":                        {[]string{"put", "k", "--text", "v", "--server", open.at["wire"]}, command.Failed, "skep purge make room"},
		"a namespace that holds no values":    {[]string{"put", "k", "--text", "v", "--ns", "chat", "--server", open.at["wire"]}, command.Input, "an engine's"},
		"a namespace there is not":            {[]string{"ls", "--ns", "16", "--server", open.at["wire"]}, command.NotFound, "ns list"},
		"a database there is not":             {[]string{"get", "k", "--ns", "16", "--server", open.at["wire"]}, command.Input, ""},
		"a key that is not hexadecimal":       {[]string{"get", "xy", "--hex", "--server", open.at["wire"]}, command.Input, ""},
		"a file that is not there":            {[]string{"put", "k", none, "--server", away.Addr().String()}, command.Input, ""},
		"a directory that is not there":       {[]string{"put", "k", t.TempDir(), "--server", away.Addr().String()}, command.Input, ""},
		"a format there is not":               {[]string{"ls", "-o", "xml", "--server", open.at["wire"]}, command.Input, ""},
		"a put of nothing":                    {[]string{"put", "k", "--server", open.at["wire"]}, command.Input, ""},
		"a put of two":                        {[]string{"put", "k", "f", "--text", "v", "--server", open.at["wire"]}, command.Input, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			o := withInput(t.Context(), strings.NewReader(""), c.args...)
			assert.Equal(t, c.code, o.Code, o.Stderr)
			if c.next != "" {
				_, next, _ := strings.Cut(o.Stderr, "next:")
				assert.Contains(t, next, c.next, o.Stderr)
			}
			assert.NotContains(t, o.Stderr+o.Stdout, "token-of-the", "no token is told")
		})
	}
}

// endless gives bytes until it is told that enough were taken, then nothing more: as a pipe that nobody closes.
type endless struct {
	left  int
	taken chan struct{}
	end   chan struct{}
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		close(e.taken)
		<-e.end
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	e.left -= n
	return n, nil
}

// An interrupt ends a put whose input goes on for ever. What was there stays, and of the rest no piece is left.
func TestAnInterruptedPutLeavesNothing(t *testing.T) {
	t.Parallel()
	st := memory(t)
	s := begin(t, st, nil)
	require.Zero(t, at(t, s.at["wire"], "put", "k", "--text", "before").Code)
	ctx, cancel := context.WithCancel(t.Context())
	in := &endless{left: 9 << 20, taken: make(chan struct{}), end: make(chan struct{})}
	defer close(in.end)
	go func() {
		<-in.taken
		cancel()
	}()
	o := withInput(ctx, in, "put", "k", "-", "--server", s.at["wire"])
	require.Equal(t, command.Interrupted, o.Code, o.Stderr)
	require.Equal(t, "before", at(t, s.at["wire"], "get", "k").Stdout)
	list, err := st.NamespacesOf(t.Context(), "default")
	require.NoError(t, err)
	for _, n := range list {
		blocks, err := st.CountBlocks(t.Context(), n.ID)
		require.NoError(t, err)
		assert.EqualValues(t, map[string]int{"resp/0": 1}[n.Name], blocks, n.Name)
	}
}

// An interrupt of a get leaves no half file, whenever it comes.
func TestAnInterruptedGetLeavesNoFile(t *testing.T) {
	t.Parallel()
	s := begin(t, memory(t), nil)
	size := 64 << 20
	require.Zero(t, at(t, s.at["wire"], "put", "k", file(t, "k", make([]byte, size))).Code)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		ended <- withInput(ctx, nil, "get", "k", "--to", filepath.Join(dir, "out"), "--server", s.at["wire"]).Code
	}()
	storetest.Eventually(t, "a file is begun", func() bool { list, err := os.ReadDir(dir); return err == nil && len(list) > 0 })
	cancel()
	code := <-ended
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	if code == 0 { // it was quicker
		require.Len(t, list, 1)
		info, err := list[0].Info()
		require.NoError(t, err)
		require.EqualValues(t, size, info.Size())
		return
	}
	require.Equal(t, command.Interrupted, code)
	require.Empty(t, list)
}

// A confirmation that nobody gives can be interrupted.
func TestAnInterruptedQuestionChangesNothing(t *testing.T) {
	t.Parallel()
	s := begin(t, memory(t), nil)
	require.Zero(t, at(t, s.at["wire"], "put", "k", "--text", "v").Code)
	ctx, cancel := context.WithCancel(t.Context())
	in := &endless{taken: make(chan struct{}), end: make(chan struct{})}
	defer close(in.end)
	go func() {
		<-in.taken
		cancel()
	}()
	require.Equal(t, command.Interrupted, withInput(ctx, in, "purge", "--ns", "0", "--server", s.at["wire"]).Code)
	require.Equal(t, "v", at(t, s.at["wire"], "get", "k").Stdout)
}
