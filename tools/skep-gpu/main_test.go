//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/internal/reclaim"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/server"
)

const (
	childEnv   = "SKEP_TEST_SKEP_GPU"
	backendEnv = "SKEP_TEST_BACKEND" // cuda: make cuda-test runs this on the fake driver
	patience   = time.Minute
)

// The test binary, run again with arguments, is skep-gpu.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start runs skep-gpu and waits for its first line.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, in io.WriteCloser, out *bufio.Scanner) {
	if b := os.Getenv(backendEnv); b != "" {
		args = append(args, "--backend", b, "--gpu", "1") // both on one GPU, which is the lenders' by default
	}
	cmd = exec.Command(os.Args[0], args...) // children of its own inherit what makes it skep-gpu
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	out = bufio.NewScanner(stdout)
	out.Buffer(nil, 1<<20)
	require.True(t, out.Scan(), "it says that it is ready")
	return cmd, in, out
}

const blockBytes = 64 << 10

func content(i int) []byte { return bytes.Repeat([]byte{byte(i*7 + 1), byte(i)}, blockBytes/2) }

// load restores the chain, compares every byte, and says how many blocks a GPU had.
func load(t *testing.T, st skep.Store, sc skep.Scope, keys []skep.Key) int {
	mem := make([]byte, len(keys)*blockBytes)
	ses, err := st.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem}}}})
	require.NoError(t, err)
	for into := make([]skep.Chunk, 8); ; {
		n, err := ses.Next(t.Context(), into)
		for _, c := range into[:n] {
			require.NoError(t, c.Err)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.NoError(t, ses.Close(t.Context()))
	for i := range keys {
		require.Equal(t, content(i), mem[i*blockBytes:(i+1)*blockBytes])
	}
	res, err := st.Lookup(t.Context(), &skep.LookupRequest{Scope: sc, Keys: keys, Tiers: true, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Equal(t, len(keys), res.Blocks)
	gpus := 0
	for _, x := range res.Tiers {
		if x == skep.TierGPU {
			gpus++
		}
	}
	return gpus
}

// scrape gives the metrics a process serves at a Unix socket.
func scrape(t *testing.T, path string) string {
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	defer c.CloseIdleConnections()
	res, err := c.Get("http://skep-gpu/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", b)
	return string(b)
}

// One process lends, another serves a third one's store with the lent memory in front: the
// border moves, the serving process is killed, and every byte is right all the time.
func TestLendAndServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	st := memstore.New(memstore.Options{})
	srv, err := server.New(st, server.Options{})
	require.NoError(t, err)
	ln, err := net.Listen("unix", path("behind"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	defer func() { cancel(); <-served; require.NoError(t, st.Close()) }()

	lend := []string{"lend", "--socket", path("lender"), "--units", "8", "--border", "4", "--lender-block", "65536", "--borrower-block", "65536",
		"--sim-size", "67108864", "--lease", "1m", "--reclaim", "1m", "--metrics", "unix:" + path("metrics")}
	lending, orders, answers := start(t, lend...)
	serving, _, _ := start(t, "serve", "--behind", "unix:"+path("behind"), "--listen", path("front"), "--block-size", "65536", "--borrow", path("lender"),
		"--sim-size", "67108864", "--timeout", "1m", "--pinned", "1048576", "--metrics", "unix:"+path("served"))

	c, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + path("front"), Timeout: patience, Silence: patience})
	require.NoError(t, err)
	defer c.Close()
	shape := skep.Shape{Kind: skep.Attention, Layers: 8, KVHeads: 2, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "default", Name: "n", Model: "m", Shape: shape, Copies: 1, Chained: true})
	require.NoError(t, err)
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	var keys []skep.Key
	for i := range 6 {
		keys = append(keys, skep.KeyOf([]byte{byte(i)}))
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: content(i)}}})
	}
	_, err = c.Put(t.Context(), r)
	require.NoError(t, err)
	gpus := func(n int) {
		t.Helper()
		for until := time.Now().Add(patience); ; {
			if load(t, c, r.Scope, keys) == n {
				return
			}
			require.True(t, time.Now().Before(until), "%d blocks come out of GPU memory", n)
		}
	}
	move := func(order string) (m moved) {
		t.Helper()
		_, err := io.WriteString(orders, order+"\n")
		require.NoError(t, err)
		require.True(t, answers.Scan())
		require.NoError(t, json.Unmarshal(answers.Bytes(), &m))
		require.True(t, m.Simulated)
		return m
	}
	gpus(6)
	require.Equal(t, 8, move("border 8").Border)
	gpus(0)
	require.Equal(t, 2, move("border 2").Border)
	gpus(6)
	require.Contains(t, move("border nine").Error, "is no order")
	require.Contains(t, move("border 9").Error, "0 to 8")
	require.Equal(t, 3, move("need 65 10 2").Border, "blocks of 64 KiB, 32 a unit")
	gpus(6)
	for _, want := range []string{`skep_gpu_arena_units{arena="",whose="borrowers"} 5`, `skep_gpu_arena_units{arena="",whose="lender"} 3`, "skep_gpu_reclaims_total{"} {
		require.Contains(t, scrape(t, path("metrics")), want)
	}
	for _, want := range []string{`skep_gpu_tier_blocks{memory="lent"} 6`, `skep_gpu_pinned_bytes{use="free"} 1.048576e+06`, "skep_gpu_tier_failed 0",
		`skep_gpu_loan_units{lender="",socket="` + path("lender") + `"} 5`, "skep_gpu_loan_epoch{"} {
		require.Contains(t, scrape(t, path("served")), want)
	}

	// The lender is killed: the same bytes from behind, and lent memory of the next one there.
	require.NoError(t, lending.Process.Kill())
	gpus(0)
	_, orders, answers = start(t, lend...)
	gpus(6)
	require.Contains(t, scrape(t, path("served")), "skep_gpu_loan_lenders_lost_total{socket=\""+path("lender")+"\"} 1")

	require.NoError(t, serving.Process.Kill())
	require.Equal(t, 8, move("border 8").Border)
	direct, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + path("behind"), Timeout: patience, Silence: patience})
	require.NoError(t, err)
	defer direct.Close()
	require.Zero(t, load(t, direct, r.Scope, keys))
	require.NoError(t, orders.Close())
	require.False(t, answers.Scan(), "it ends with its input")
}

// A few moves and kills, on whatever GPUs there are.
func TestBenchReclaim(t *testing.T) {
	t.Parallel()
	_, _, out := start(t, "bench", "reclaim", "--moves", "2", "--kills", "1", "--json")
	var r reclaim.Result
	require.NoError(t, json.Unmarshal(out.Bytes(), &r), out.Text())
	require.True(t, r.Simulated)
	require.Len(t, r.Rows, 3)
	require.Zero(t, r.Wrong)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"backend": {"lend", "--backend", "x"}, "no socket": {"lend", "--sim-size", "268435456"}, "GPU": {"lend", "--gpu", "9"},
		"metrics": {"lend", "--socket", filepath.Join(t.TempDir(), "s"), "--sim-size", "268435456", "--metrics", "nowhere"},
		"blocks":  {"lend", "--lender-block", "0"}, "no server": {"serve", "--listen", "x", "--behind", "unix:/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			root := command(bytes.NewReader(nil), io.Discard)
			root.SetArgs(args)
			require.Error(t, root.ExecuteContext(t.Context()))
		})
	}
	root := command(bytes.NewReader(nil), io.Discard)
	root.SetArgs([]string{"lend", "--backend", "cuda", "--socket", filepath.Join(t.TempDir(), "s")})
	if os.Getenv(backendEnv) == "" {
		require.Error(t, root.ExecuteContext(t.Context()), "not in this build, or there is no GPU")
	}
}
