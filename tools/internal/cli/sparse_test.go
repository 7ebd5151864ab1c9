package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/sparse"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/demo"
)

// clustered makes a store with one clustered context of 256 tokens, of which groups far
// apart in the text are activated together, and returns its directory and the chain's last key.
func clustered(t *testing.T) (dir string, last skep.Key) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir = filepath.Join(t.TempDir(), "store")
	st, err := store.Open(ctx, store.Options{Dir: dir, CapacityBytes: 128 << 20, BlockBytes: 256 << 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "acme", Name: "chat", Chained: true, Class: skep.Durable,
		Shape: skep.Shape{Kind: skep.Latent, Layers: 1, HeadDim: 8, Element: skep.F32, BlockTokens: 32}})
	require.NoError(t, err)
	scope := skep.Scope{Namespace: ns.ID}
	var keys []skep.Key
	var blocks []skep.Block
	for i := range 8 {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		keys = append(keys, skep.ChainKey(parent, []uint32{uint32(i)}))
		var b []byte
		for n := range 32 * 8 {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(math.Sin(float64(i*256+n)))))
		}
		blocks = append(blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: b}}})
	}
	_, err = st.Put(ctx, &skep.PutRequest{Scope: scope, Blocks: blocks})
	require.NoError(t, err)
	sp, err := sparse.New(st, sparse.Options{})
	require.NoError(t, err)
	c, err := sp.Cluster(ctx, &skep.ClusterRequest{Scope: scope, Keys: keys, QueryHeads: 2})
	require.NoError(t, err)
	for s := range 120 {
		var on []uint32
		for i := range uint32(16) {
			on = append(on, uint32(s%16)+16*i)
		}
		require.NoError(t, c.Observe(ctx, skep.Observation{Entries: on, Explorative: true}))
	}
	require.NoError(t, sp.Close(ctx))
	return dir, keys[7]
}

func runJSON(t *testing.T, into any, args ...string) (code int, text string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(context.Background(), append(args, "--json"), nil, &out, &errs)
	if into != nil && code == command.OK {
		require.NoError(t, json.Unmarshal(out.Bytes(), into), out.String())
	}
	return code, errs.String()
}

func TestAContextIsInspectedAndReclustered(t *testing.T) {
	t.Parallel()
	dir, last := clustered(t)
	where := []string{"--dir", dir, "--tenant", "acme", "--namespace", "chat"}
	var before, after clustersResult
	picture := filepath.Join(t.TempDir(), "clusters.svg")
	code, text := runJSON(t, &before, append([]string{"inspect", "clusters", last.String(), "--svg", picture}, where...)...)
	require.Equal(t, command.OK, code, text)
	require.Equal(t, 256, before.Entries)
	require.Equal(t, 120, before.Described[0].Steps)
	require.NotEmpty(t, before.Described[0].Sizes)

	code, text = runJSON(t, nil, append([]string{"inspect", "clusters", last.String(), "--svg", picture}, where...)...)
	require.Equal(t, command.Input, code, text)
	require.Contains(t, text, "--svg is "+picture+", must be a file that is not there yet")
	svg, err := os.ReadFile(picture)
	require.NoError(t, err)
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err, "the picture is well-formed")
		}
	}
	require.Greater(t, bytes.Count(svg, []byte("<path")), 100, "pairs are drawn")

	var r reclusterResult
	code, text = runJSON(t, &r, append([]string{"recluster", last.String()}, where...)...)
	require.Equal(t, command.OK, code, text)
	require.Len(t, r.Layers, 1)
	code, text = runJSON(t, &after, append([]string{"inspect", "clusters", last.String()}, where...)...)
	require.Equal(t, command.OK, code, text)
	// Which arrangement reads faster is judged by what reads cost here and now (Options.Cost fixes it, in store/sparse's tests).
	if r.Layers[0].Kept {
		require.Equal(t, uint64(2), after.Described[0].Generation)
		require.Less(t, mean(after.Described[0].Radii), mean(before.Described[0].Radii))
	} else {
		require.NotEmpty(t, r.Layers[0].Reason)
		require.GreaterOrEqual(t, r.Layers[0].After, r.Layers[0].Before*0.98)
		require.Equal(t, before.Described, after.Described)
	}

	// Text for people, and mistakes.
	var out, errs bytes.Buffer
	require.Equal(t, command.OK, Main(context.Background(), append([]string{"inspect", "clusters", last.String()}, where...), nil, &out, &errs))
	require.Contains(t, out.String(), "256 entries")
	code, _ = runJSON(t, nil, append([]string{"recluster", last.String(), "--layer", "3"}, where...)...)
	require.Equal(t, command.Input, code)
	code, _ = runJSON(t, nil, append([]string{"recluster", skep.KeyOf(nil).String()}, where...)...)
	require.Equal(t, command.NotFound, code)
	code, _ = runJSON(t, nil, "recluster", last.String(), "--tenant", "acme", "--namespace", "chat")
	require.Equal(t, command.Input, code)
}

// An interrupted demo ends with an interrupt's exit code, whatever it had found until then.
func TestAnInterruptedDemosCode(t *testing.T) {
	t.Parallel()
	bad := &demo.Result{BrokenPromises: 1}
	require.Equal(t, command.Interrupted, demoCode(bad, true))
	require.Equal(t, command.Failed, demoCode(bad, false))
	require.Equal(t, command.OK, demoCode(&demo.Result{}, false))
}
