package trace

import (
	"bytes"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// fuzzLimits keep what a fuzzer invents small.
var fuzzLimits = limits{lineBytes: 4 << 10, sessionBytes: 64 << 10, heldBytes: 256 << 10}

// holds checks what the package promises of any input: requests keep their
// invariants, and a trace ends in io.EOF or in a *FormatError, and stays so.
func holds(t *testing.T, src []byte) {
	r, err := newReader("fuzz", bytes.NewReader(src), fuzzLimits)
	if err != nil {
		var fe *FormatError
		require.ErrorAs(t, err, &fe)
		require.NotEmpty(t, fe.Field+fe.Value)
		return
	}
	defer r.Close()
	last := Request{}
	for {
		req, err := r.Next()
		if err != nil {
			_, again := r.Next()
			require.Equal(t, err, again)
			if err != io.EOF {
				var fe *FormatError
				require.ErrorAs(t, err, &fe)
				require.LessOrEqual(t, len(fe.Value), 5*maxValue)
			}
			return
		}
		require.GreaterOrEqual(t, req.Time, last.Time)
		require.GreaterOrEqual(t, min(req.InputTokens, req.OutputTokens), 0)
		require.Positive(t, req.BlockTokens)
		covered := req.InputTokens - req.CachedTokens(math.MaxInt)
		switch {
		case req.LastValidTokens == 0:
			require.True(t, covered >= 0 && covered < req.BlockTokens, "%d of %d tokens in no block", covered, req.InputTokens)
		default:
			require.Less(t, req.LastValidTokens, req.BlockTokens)
			require.Zero(t, covered)
		}
		last = req
	}
}

func FuzzJSONL(f *testing.F) {
	f.Add([]byte(twoTurns))
	f.Add([]byte(`{"timestamp":0,"input_length":17,"output_length":0,"hash_ids":[4,5],"block_size":16}`))
	f.Fuzz(holds)
}

func FuzzKVTester(f *testing.F) {
	f.Add([]byte(mainAndAgent))
	f.Add([]byte(kvDoc("s", `{"t":1,"in":64,"out":1,"hash_ids":[1]},{"t":2,"in":0,"out":1,"hash_ids":[]}`)))
	f.Add(archive(f, "a.json", mainAndAgent, "b.json", kvDoc("b", "")))
	f.Add(compress(f, []byte(mainAndAgent)))
	f.Fuzz(holds)
}
