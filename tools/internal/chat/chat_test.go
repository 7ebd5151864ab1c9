package chat

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/trace"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func generate(t *testing.T, p Params) []trace.Request {
	g, err := New(p)
	require.NoError(t, err)
	var all []trace.Request
	for {
		r, err := g.Next()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		r.Blocks = slices.Clone(r.Blocks)
		all = append(all, r)
	}
}

// The table in doc.go is what the default parameters give.
func TestDocumentedStatistics(t *testing.T) {
	t.Parallel()
	var s trace.Stats
	batches := make(map[time.Duration]int)
	largest := 0
	for _, r := range generate(t, Params{}) {
		s.Add(r)
		batches[r.Time]++
		largest = max(largest, batches[r.Time])
	}
	measured := map[string]float64{
		"requests":             float64(s.Requests),
		"span, s":              s.Last.Seconds(),
		"block references":     float64(s.BlockRefs),
		"unique blocks":        float64(s.UniqueBlocks()),
		"infinite-cache hit":   s.HitRatio(),
		"input p50":            float64(s.InputQuantile(.5)),
		"input p90":            float64(s.InputQuantile(.9)),
		"input p99":            float64(s.InputQuantile(.99)),
		"output p50":           float64(s.OutputQuantile(.5)),
		"output p90":           float64(s.OutputQuantile(.9)),
		"output p99":           float64(s.OutputQuantile(.99)),
		"partial tails, share": float64(s.Partial) / float64(s.Requests),
		"largest batch":        float64(largest),
	}
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^//\t(\S.*?) +([\d.,]+)  \(`).FindAllStringSubmatch(string(doc), -1)
	require.Len(t, rows, len(measured))
	for _, row := range rows {
		documented, err := strconv.ParseFloat(strings.ReplaceAll(row[2], ",", ""), 64)
		require.NoError(t, err)
		require.Contains(t, measured, row[1])
		// Documented figures are rounded; on another architecture a length may round differently.
		assert.InEpsilon(t, documented, measured[row[1]], .002, row[1])
	}
}

func TestEqualParametersGiveEqualBytes(t *testing.T) {
	t.Parallel()
	write := func(p Params) string {
		var b bytes.Buffer
		require.NoError(t, Write(&b, p))
		return b.String()
	}
	first := write(Params{Requests: 500, Seed: 7})
	assert.Equal(t, first, write(Params{Requests: 500, Seed: 7}))
	assert.NotEqual(t, first, write(Params{Requests: 500, Seed: 8}))
	assert.True(t, strings.HasPrefix(write(Params{Requests: 501, Seed: 7}), first), "a longer workload begins like a shorter one")
}

// variants are workloads unlike the default.
var variants = map[string]Params{
	"default":          {},
	"vLLM's blocks":    {BlockTokens: 16, MaxInput: 8_000},
	"one system":       {SystemPrompts: 1, System: LogNormal{8000, 0}, Turns: 1},
	"long sessions":    {Turns: 40, MaxInput: 32_000},
	"tiny window":      {MaxInput: 2, BlockTokens: 1},
	"exact multiples":  {BlockTokens: 64, System: LogNormal{64, 0}, Prompt: LogNormal{128, 0}, Answer: LogNormal{64, 0}},
	"glacial":          {SessionsPerSecond: 1e-5, Think: LogNormal{1e6, 10}},
	"no two at a time": {ArrivalBatch: time.Millisecond},
}

func TestInvariants(t *testing.T) {
	t.Parallel()
	for name, p := range variants {
		t.Run(name, func(t *testing.T) {
			p.Requests = 2000
			parent := make(map[uint64]uint64) // id → the id before it, +1
			partial := make(map[uint64]bool)
			last := time.Duration(0)
			all := generate(t, p)
			p.EnsureDefaults()
			require.Len(t, all, p.Requests)
			for _, r := range all {
				require.GreaterOrEqual(t, r.Time, last)
				require.Zero(t, r.Time%p.ArrivalBatch)
				last = r.Time
				require.LessOrEqual(t, r.InputTokens, p.MaxInput)
				require.Positive(t, r.OutputTokens)
				require.Len(t, r.Blocks, (r.InputTokens+p.BlockTokens-1)/p.BlockTokens)
				require.Equal(t, r.InputTokens%p.BlockTokens, r.LastValidTokens)
				before := uint64(0)
				for _, id := range r.Blocks {
					was, known := parent[id]
					require.True(t, !known || was == before, "id %d has two parents", id)
					require.False(t, partial[id], "the partly filled block %d is used again", id)
					parent[id] = before
					before = id + 1
				}
				if r.LastValidTokens > 0 {
					partial[r.Blocks[len(r.Blocks)-1]] = true
				}
			}
		})
	}
}

func TestWhatIsWrittenReadsBackTheSame(t *testing.T) {
	t.Parallel()
	for name, p := range variants {
		t.Run(name, func(t *testing.T) {
			p.Requests = 300
			var b bytes.Buffer
			require.NoError(t, Write(&b, p))
			r, err := trace.NewReader("generated", &b)
			require.NoError(t, err)
			defer r.Close()
			i, want := 0, generate(t, p)
			for got, err := range r.All() {
				require.NoError(t, err)
				require.Equal(t, want[i], got)
				i++
			}
			assert.Equal(t, len(want), i)
		})
	}
}

func TestParametersShapeTheWorkload(t *testing.T) {
	t.Parallel()
	hit := func(p Params) float64 {
		var s trace.Stats
		p.Requests = 3000
		for _, r := range generate(t, p) {
			s.Add(r)
		}
		return s.HitRatio()
	}
	base := hit(Params{})
	assert.Greater(t, hit(Params{Turns: 10}), base+.2, "more turns repeat more")
	assert.Less(t, hit(Params{Turns: 1}), base-.2, "single turns share system prompts only")
	assert.Greater(t, hit(Params{System: LogNormal{20_000, .1}}), base+.2, "long system prompts are shared")
	assert.Less(t, hit(Params{Turns: 1, System: LogNormal{1, 0}}), 1e-9, "nothing shared, nothing hit")
}

func TestBadParameters(t *testing.T) {
	t.Parallel()
	for field, p := range map[string]Params{
		"Requests":                   {Requests: -1},
		"BlockTokens":                {BlockTokens: 1 << 21},
		"Popularity":                 {Popularity: 1},
		"Prompt.Sigma":               {Prompt: LogNormal{1, -1}},
		"Turns":                      {Turns: .5},
		"ArrivalBatch":               {ArrivalBatch: 1},
		"Requests/SessionsPerSecond": {Requests: 1e6, SessionsPerSecond: 1e-5},
	} {
		t.Run(field, func(t *testing.T) {
			var b bytes.Buffer
			err := Write(&b, p)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, field, e.Field)
			assert.ErrorIs(t, err, skep.Invalid)
			assert.Zero(t, b.Len())
		})
	}
}

func TestWriteErrorComesBack(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	assert.ErrorIs(t, Write(failing{full}, Params{Requests: 1000}), full)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
