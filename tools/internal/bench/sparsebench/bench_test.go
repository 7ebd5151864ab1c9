package sparsebench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// smallTrace writes a trace in which queries like one of four directions, and so do keys:
// 16 questions of 4 steps over 256 entries, a tenth of them activated.
func smallTrace(t *testing.T) string {
	t.Helper()
	const entries, kv, heads, dim, questions, steps, on = 256, 1, 2, 8, 16, 4, 25
	rng := rand.New(rand.NewPCG(1, 1))
	head, err := json.Marshal(map[string]any{"document": "small", "layers": 2, "entries": entries, "kv_heads": kv, "query_heads": heads, "head_dim": dim,
		"questions": questions, "steps": steps, "activated": on, "sparsity": 0.1})
	require.NoError(t, err)
	var b bytes.Buffer
	b.WriteString(attnMagic)
	_ = binary.Write(&b, binary.LittleEndian, uint32(len(head)))
	b.Write(head)
	put := func(v float32) { _ = binary.Write(&b, binary.LittleEndian, toHalf(v)) }
	for range 2 {
		keys := make([][dim]float32, entries)
		for e := range keys {
			for i := range dim {
				keys[e][i] = float32(rng.NormFloat64() * 0.3)
			}
			keys[e][e%4] += 3
			for i := range dim {
				put(keys[e][i])
			}
		}
		var activated [][]uint16
		var queries [][heads * dim]float32
		for range questions * steps {
			var q [heads * dim]float32
			for i := range q {
				q[i] = float32(rng.NormFloat64() * 0.3)
			}
			topic := rng.IntN(4)
			q[topic] += 4
			q[dim+topic] += 4
			queries = append(queries, q)
			score := make([]float64, entries)
			order := make([]uint16, entries)
			for e := range score {
				order[e] = uint16(e)
				for i := range q {
					score[e] += float64(q[i] * keys[e][i%dim])
				}
			}
			slices.SortFunc(order, func(x, y uint16) int {
				if score[x] > score[y] {
					return -1
				}
				return 1
			})
			top := slices.Clone(order[:on])
			slices.Sort(top)
			activated = append(activated, top)
		}
		for range 2 { // what is foreseen is what comes
			for _, q := range queries {
				for _, v := range q {
					put(v)
				}
			}
		}
		for _, a := range activated {
			_ = binary.Write(&b, binary.LittleEndian, a)
		}
	}
	path := filepath.Join(t.TempDir(), "small.kvattn")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	return path
}

// toHalf rounds towards zero, which is near enough.
func toHalf(v float32) uint16 {
	b := math.Float32bits(v)
	exp := int(b>>23&255) - 112
	if exp <= 0 {
		return uint16(b >> 16 & 0x8000)
	}
	return uint16(b>>16&0x8000) | uint16(exp)<<10 | uint16(b>>13&1023)
}

func TestHalves(t *testing.T) {
	t.Parallel()
	for _, v := range []float32{0, 1, -2.5, 0.125, 65504, -6.1035156e-05} {
		require.Equal(t, v, half(toHalf(v)))
	}
	require.Equal(t, float32(1)/(1<<24), half(1), "subnormal")
	require.True(t, math.IsInf(float64(half(0x7c00)), 1))
}

func small(t *testing.T) Options {
	return Options{Traces: []string{smallTrace(t)}, Devices: []int{2, 4}, Profiles: []string{"pm9a3"}, Tracks: []string{"A", "B"},
		EntryBytes: 4096, DRAM: 0.3, Mass: []float64{0.9}, Profiled: -1, Seed: 1}
}

func TestSparseGivesARowForEachStrategy(t *testing.T) {
	t.Parallel()
	o := small(t)
	r, err := Run(context.Background(), o)
	require.NoError(t, err)
	require.True(t, r.Simulated)
	rows := map[string]Row{}
	for _, row := range r.Rows {
		name := fmt.Sprint(row.Track, row.Strategy, row.Devices)
		require.NotContains(t, rows, name)
		rows[name] = row
		require.Equal(t, 32, row.Steps, "16 judged steps in each of two layers")
		require.GreaterOrEqual(t, row.IOMs*(1+1e-9), row.BoundMs, "%s: nothing is faster than the drives", name)
		require.LessOrEqual(t, row.Balance, 1+1e-9)
		if row.Track == "B" {
			require.Greater(t, row.Mass, 0.88, "%s: at least the mass asked for; whole clusters may overshoot where there are so few", name)
		}
	}
	for _, s := range Strategies() {
		if s != "quest" && s != "no-dedup" && s != "static-route" && s != "lru" {
			require.Contains(t, rows, "A"+s+"4")
		}
		require.Contains(t, rows, "B"+s+"4", "all fit 30 % of DRAM")
	}
	require.Equal(t, rows["Askep2"].Bytes > 0, true)
	require.InDelta(t, rows["Askep4"].BoundMs, rows["Atoken-order4"].BoundMs, 1e-12, "the same entries for all")
	require.Less(t, rows["Askep4"].IOMs, rows["Aplace-one4"].IOMs*1.001)
	require.Len(t, r.Ratios, 2)

	again, err := Run(context.Background(), o)
	require.NoError(t, err)
	for i := range again.Rows { // but for the time choosing took
		again.Rows[i].SelectMs, r.Rows[i].SelectMs = 0, 0
	}
	require.Equal(t, r.Rows, again.Rows, "the same seed gives the same rows")
}

// The bench on real files reads the records that were placed, and says it is no simulation.
func TestSparseReadsFromFiles(t *testing.T) {
	t.Parallel()
	o := small(t)
	o.Profiles, o.Devices, o.Strategies, o.Dir = []string{"native"}, []int{2}, []string{"token-order", "skep"}, t.TempDir()
	r, err := Run(context.Background(), o)
	require.NoError(t, err)
	require.False(t, r.Simulated)
	require.Positive(t, r.Models["native"].IOPS)
	for _, row := range r.Rows {
		require.True(t, row.Measured)
	}
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left behind")
}

func TestSparseBadInput(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"no trace": func(o *Options) { o.Traces = nil },
		"devices":  func(o *Options) { o.Devices = []int{65} },
		"profile":  func(o *Options) { o.Profiles = []string{"tape"} },
		"track":    func(o *Options) { o.Tracks = []string{"C"} },
		"entry":    func(o *Options) { o.EntryBytes = 100 },
		"dram":     func(o *Options) { o.DRAM = 2 },
		"mass":     func(o *Options) { o.Mass = []float64{0} },
		"strategy": func(o *Options) { o.Strategies = []string{"luck"} },
	} {
		o := small(t)
		change(&o)
		_, err := Run(context.Background(), o)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, []byte("KVATTN01 and more"), 0o644))
	_, err := ReadTrace(path)
	require.ErrorIs(t, err, skep.Invalid)
	whole, err := os.ReadFile(smallTrace(t))
	require.NoError(t, err)
	for n := 13; n < len(whole); n += len(whole) / 20 {
		_, err := decodeAttnTrace(bytes.NewReader(whole[:n]))
		require.Error(t, err)
	}
}

// The recorded traces are what their description says.
func TestRecordedTraces(t *testing.T) {
	t.Parallel()
	paths, _ := filepath.Glob("../../../../shared/data/attn/*.kvattn.zst")
	if len(paths) == 0 {
		t.Skip("no ../shared/data/attn beside this checkout")
	}
	tr, err := ReadTrace(paths[0])
	require.NoError(t, err)
	require.Equal(t, 4096, tr.Entries)
	// What attention recomputed from keys and queries prefers is what was recorded.
	l := &tr.Layers[1]
	for _, step := range []int{0, 77, 500} {
		mass := tr.mass(l, step)
		order := make([]uint32, tr.Entries)
		for e := range order {
			order[e] = uint32(e)
		}
		slices.SortFunc(order, func(a, b uint32) int {
			if mass[a] > mass[b] {
				return -1
			}
			return 1
		})
		same := 0
		for _, e := range order[:tr.Activated] {
			if slices.Contains(l.Activated[step], e) {
				same++
			}
		}
		// Not exactly: what a head gives to the question's own tokens, which the trace does not
		// hold, weighs heads differently there.
		require.GreaterOrEqual(t, same, tr.Activated*8/10)
	}
}

// A generated context has the recorded one's statistics at another length: the same share
// is activated, mostly what attention prefers, and strategies can be compared on it.
func TestGeneratedContexts(t *testing.T) {
	t.Parallel()
	tr, err := ReadTrace(smallTrace(t))
	require.NoError(t, err)
	for n, dim := range map[int]int{256: 8, 1000: 8 + topicDims} {
		g, err := Generate(tr, GenerateOptions{Entries: n, Seed: 3})
		require.NoError(t, err)
		again, err := Generate(tr, GenerateOptions{Entries: n, Seed: 3})
		require.NoError(t, err)
		require.Equal(t, g, again, "the same seed gives the same context")
		require.Equal(t, []int{n, dim, 16, 4, 2}, []int{g.Entries, g.HeadDim, g.Questions, g.Steps, len(g.Layers)})
		for l := range g.Layers {
			require.Len(t, g.Layers[l].Keys, n*g.keyWidth())
			require.Len(t, g.Layers[l].Queries, 64*g.queryWidth())
			for step, on := range g.Layers[l].Activated {
				require.Len(t, on, (25*n+128)/256)
				require.True(t, slices.IsSorted(on))
				mass, got := g.mass(&g.Layers[l], step), float32(0)
				for _, e := range on {
					got += mass[e]
				}
				require.Greater(t, got, 3*2*float32(len(on))/float32(n), "of two heads, three times the even share")
			}
		}
	}
	for _, bad := range []GenerateOptions{{Entries: 100}, {Entries: MaxGenerated + 1}, {Entries: 256, Steps: 5}, {Entries: 256, Questions: 3}, {Entries: 256, Layers: []int{2}}} {
		_, err := Generate(tr, bad)
		require.ErrorIs(t, err, skep.Invalid)
	}

	o := small(t)
	o.Generate, o.Strategies, o.Devices = []int{600}, []string{"skep", "token-order"}, []int{2}
	r, err := Run(context.Background(), o)
	require.NoError(t, err)
	require.Len(t, r.Rows, 4)
	require.Equal(t, 600, r.Rows[0].Entries)
	o.Figures = true
	r, err = Run(context.Background(), o)
	require.NoError(t, err)
	for _, f := range r.Figures {
		require.GreaterOrEqual(t, f.Value, 0.0)
		if f.Unit == "share" {
			require.LessOrEqual(t, f.Value, 1.0, "%+v", f)
		}
	}
	require.Len(t, r.Figures, 2*7)
}
