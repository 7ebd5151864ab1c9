//go:build linux

package ttft

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/payload"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

// shape is 32 KiB a block of 16 tokens.
var boardShape = skep.Shape{Kind: skep.Attention, Layers: 8, KVHeads: 1, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}

const boardBlock = 32 << 10

const (
	boardServer = "SKEP_TEST_BOARD_SERVER" // where a process that is a server is to listen
	boardToken  = "the engine's token"
)

func init() { asServer = serveIfAsked }

func serveIfAsked() {
	path := os.Getenv(boardServer)
	if path == "" {
		return
	}
	if err := serveBoards(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveBoards serves a store on one simulated drive of 64 MiB/s until standard input ends.
func serveBoards(path string) error {
	dir := filepath.Dir(path)
	st, err := store.Open(context.Background(), store.Options{Dir: filepath.Join(dir, "store"), DeviceCount: 1, BlockBytes: boardBlock, CacheBytes: -1, CapacityBytes: 64 << 20, SegmentBytes: 2 << 20, LeasedBytes: 1 << 50,
		OpenDevice: func(_ int, _ string, _ bool, size int64) (device.Device, error) {
			return device.NewThrottled(device.NewMemory(size), device.Model{ReadBandwidth: 64 << 20, Latency: 100 * time.Microsecond})
		}})
	if err != nil {
		return err
	}
	hash, err := auth.TokenHash(boardToken)
	if err != nil {
		return err
	}
	who, err := auth.New([]auth.Credential{{Name: "engine", Tenant: auth.AnyTenant, Rights: auth.All, TokenSHA256: hash}}, nil, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("listening")
	return errors.Join(server.Serve(ctx, l, st, server.Options{Auth: who, Drain: time.Second}), st.Close())
}

// dialBoards is a client, with memory shared with its server, which is a process of its own.
func dialBoards(t *testing.T) *wire.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), boardServer+"="+path)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "listening\n", line)
	c, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + path, Token: boardToken, SharedMemory: 16 << 20, Timeout: time.Minute, Patience: time.Minute, Silence: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// An engine claims by a word in the memory it shares with its server, another process: each block is loaded or granted, and no claim the word grants is a call.
func TestClaimsByAWordInSharedMemory(t *testing.T) {
	t.Parallel()
	const seed, blocks, page = 5, 128, 4096
	t.Logf("seed %d", seed)
	ctx := t.Context()
	c := dialBoards(t)
	ns, err := c.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "m", Model: "m", Shape: boardShape, Chained: true})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: ns.ID}
	var keys []skep.Key
	req := &skep.PutRequest{Scope: sc}
	for i := range blocks {
		k := skep.KeyOf(binary.LittleEndian.AppendUint64(nil, uint64(i)))
		b := make([]byte, boardBlock)
		payload.Fill(b, k)
		keys = append(keys, k)
		req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
	}
	_, err = c.Put(ctx, req)
	require.NoError(t, err)
	require.NoError(t, c.Flush(ctx))
	mem, err := c.Alloc(ctx, blocks*boardBlock+page)
	require.NoError(t, err)
	defer mem.Release()
	dest := mem.Bytes()[page:]
	word, err := skep.ClaimWordAt(mem.Bytes())
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(seed, 0))
	byWord, byCall := 0, 0
	for range 8 {
		per := time.Duration(5+rng.IntN(40)) * time.Microsecond
		ses, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.TailFirst, Dest: skep.Destination{Memory: dest, Stride: boardBlock},
			Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: per}}}}})
		require.NoError(t, err)
		require.NoError(t, ses.ShareClaimWord(ctx, 0, word))
		end := blocks * boardShape.BlockTokens
		board := skep.NewClaimer(ses, 0, word, boardShape.BlockTokens, end)
		granted := map[int]int{}
		crew := storetest.NewCrew(t)
		crew.Go(func(t testing.TB) {
			for pos := 0; pos < end; {
				r := skep.Range{From: pos, To: min(pos+16*(1+rng.IntN(8)), end)}
				cl, ok := board.ByWord(r, skep.Idle)
				if ok {
					byWord++
				} else {
					byCall++
					cl, err = ses.Claim(ctx, 0, r.Subset(), skep.Idle)
					require.NoError(t, err)
				}
				for b := cl.Granted.From / 16; b < cl.Granted.To/16; b++ {
					granted[b]++
				}
				if n := cl.Granted.Len(); n > 0 {
					time.Sleep(time.Duration(n) * per)
					require.NoError(t, ses.Computed(ctx, 0, cl.Granted, time.Duration(n)*per, 0))
				} else if cl.Next == pos {
					time.Sleep(100 * time.Microsecond)
				}
				pos = cl.Next
			}
		})
		landed, claimed := map[int]int{}, map[int]int{}
		into := make([]skep.Chunk, 16)
		for {
			n, err := ses.Next(ctx, into)
			for _, x := range into[:n] {
				if x.Err == nil {
					landed[x.Block]++
				} else {
					require.ErrorIs(t, x.Err, skep.Claimed)
					claimed[x.Block]++
				}
			}
			if err != nil {
				break
			}
		}
		crew.Wait()
		require.NoError(t, ses.Close(ctx))
		for b := range blocks {
			require.Equal(t, 1, landed[b]+granted[b], "block %d", b)
			require.Equal(t, granted[b], claimed[b], "block %d", b)
		}
	}
	t.Logf("%d claims answered by the word, %d by calls", byWord, byCall)
	require.Positive(t, byWord)
}
