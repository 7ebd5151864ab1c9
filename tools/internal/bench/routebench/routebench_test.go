package routebench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// conversations writes a workload in Mooncake's form: turns of so many conversations, each request with all before it.
func conversations(t *testing.T, n, turns int) string {
	var b strings.Builder
	for turn := 1; turn <= turns; turn++ {
		for c := range n {
			var ids []string
			for i := range 4 * turn {
				ids = append(ids, fmt.Sprint(1+c*1000+i))
			}
			fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": [%s]}`+"\n",
				(turn*n+c)*100, 4*turn*512, strings.Join(ids, ","))
		}
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

func options(path string) Options {
	return Options{Trace: path, Engines: 4, Rate: 100_000, Blocks: 1000, Sessions: 4, Speed: 1, Goal: 2 * time.Second}
}

// With room for everything, who goes where its conversation is computes each token once; who does not computes some
// again.
func TestEachPolicy(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), options(conversations(t, 30, 5)))
	require.NoError(t, err)
	require.Len(t, r.Rows, 4)
	unique, all := int64(30*4*5*512), int64(30*4*(1+2+3+4+5)*512)
	for _, x := range r.Rows {
		require.Equal(t, 150, x.Requests)
		require.InDelta(t, 1-float64(x.Computed)/float64(all), x.HitRatio, 1e-9)
		require.GreaterOrEqual(t, x.Balance, 1.0)
		require.LessOrEqual(t, x.TTFTP50Ms, x.TTFTP99Ms)
		switch x.Policy {
		case "affinity", "two-choices":
			require.Equal(t, unique, x.Computed, x.Policy)
		default:
			require.Greater(t, x.Computed, unique, x.Policy)
		}
	}
}

// A first token comes when the engine is free and has computed what it does not hold.
func TestAnEngine(t *testing.T) {
	t.Parallel()
	e := engine{rate: 1000, cache: newLRU(3)}
	first, cached := e.take(time.Second, &request{chain: []uint64{1, 2}, blockTokens: 500, tokens: 1100})
	require.Equal(t, 2100*time.Millisecond, first)
	require.Zero(t, cached)
	first, cached = e.take(2*time.Second, &request{chain: []uint64{1, 2, 3}, blockTokens: 500, tokens: 1500})
	require.Equal(t, 2600*time.Millisecond, first)
	require.Equal(t, 1000, cached)
	require.Zero(t, e.cache.use([]uint64{4}), "3 goes: it is behind the others in its chain")
	require.Equal(t, 2, e.cache.use([]uint64{1, 2, 3}))
	require.Zero(t, e.cache.use([]uint64{4}), "and 4 went for it")
}

// A session's request is not sent before the first token of the one before, and the next session begins when one is
// over.
func TestArrivalsOfSessions(t *testing.T) {
	t.Parallel()
	w := &workload{sessions: true, lanes: []*lane{
		{ids: []uint64{1, 2}, recs: []record{{time: 0, added: 1}, {time: time.Second, shared: 1, added: 1}}},
		{ids: []uint64{3}, recs: []record{{time: time.Hour, added: 1}}},
	}}
	var got []string
	for a := w.begin(1, 1, 0); ; {
		now, r, done, ok := a.next()
		if !ok {
			break
		}
		got = append(got, fmt.Sprint(now, r.chain))
		done(now + 3*time.Second)
	}
	require.Contains(t, [][]string{{"0s [1]", "3s [1 2]", "6s [3]"}, {"0s [3]", "3s [1]", "6s [1 2]"}}, got)
}

func TestOptionsThatAreWrong(t *testing.T) {
	t.Parallel()
	for flag, spoil := range map[string]func(*Options){
		"--engines":  func(o *Options) { o.Engines = 65 },
		"--rate":     func(o *Options) { o.Rate = 0 },
		"--blocks":   func(o *Options) { o.Blocks = 0 },
		"--sessions": func(o *Options) { o.Sessions = 0 },
		"--speed":    func(o *Options) { o.Speed = -1 },
		"--goal":     func(o *Options) { o.Goal = 0 },
		"--limit":    func(o *Options) { o.Limit = -1 },
		"--policy":   func(o *Options) { o.Policies = []string{"luck"} },
	} {
		o := options("nowhere")
		spoil(&o)
		_, err := Run(t.Context(), o)
		require.ErrorIs(t, err, skep.Invalid)
		require.ErrorContains(t, err, flag)
	}
	_, err := Run(t.Context(), options(filepath.Join(t.TempDir(), "nowhere")))
	require.ErrorIs(t, err, os.ErrNotExist)
}
