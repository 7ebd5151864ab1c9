package copies

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// What each node says of a block makes one answer.
func TestWhatNodesSayMakesOneAnswer(t *testing.T) {
	t.Parallel()
	committed, accepted, exists := skep.PutResult{Outcome: skep.Committed}, skep.PutResult{Outcome: skep.Accepted}, skep.PutResult{Outcome: skep.Exists}
	differs := skep.PutResult{Outcome: skep.Exists, Differs: true}
	away, full := skep.PutResult{Reason: skep.Unavailable}, skep.PutResult{Reason: skep.Full}
	for name, c := range map[string]struct {
		of   []skep.PutResult
		acks int
		want skep.PutResult
	}{
		"both":                          {[]skep.PutResult{committed, committed}, 2, committed},
		"one of two":                    {[]skep.PutResult{committed, away}, 1, committed},
		"the other of two":              {[]skep.PutResult{full, committed}, 1, committed},
		"too few":                       {[]skep.PutResult{committed, away}, 2, away},
		"none, for what the first says": {[]skep.PutResult{full, away}, 1, full},
		"fewer nodes than acks":         {[]skep.PutResult{committed}, 2, away},
		"the first had it":              {[]skep.PutResult{exists, committed}, 2, exists},
		"the second had it":             {[]skep.PutResult{committed, exists}, 2, committed},
		"one has other bytes":           {[]skep.PutResult{committed, differs}, 2, differs},
		"accepted":                      {[]skep.PutResult{accepted, accepted}, 2, accepted},
		"one of them only accepted":     {[]skep.PutResult{committed, accepted}, 2, accepted},
		"committed is enough":           {[]skep.PutResult{committed, accepted}, 1, committed},
		"two of three":                  {[]skep.PutResult{committed, away, committed}, 2, committed},
	} {
		require.Equal(t, c.want, Merged(c.of, c.acks), name)
	}
	yes, no, had := skep.Want{Wanted: true}, skep.Want{Reason: skep.Full}, skep.Want{Outcome: skep.Exists}
	require.Equal(t, had, Wanted([]skep.Want{had, yes}, had, 1, 1))
	require.Equal(t, yes, Wanted([]skep.Want{had, yes}, had, 1, 2), "a copy is missing")
	require.Equal(t, had, Wanted([]skep.Want{had, no}, had, 1, 2))
	require.Equal(t, yes, Wanted([]skep.Want{no, yes}, skep.Want{}, 0, 1))
	require.Equal(t, no, Wanted([]skep.Want{no, no}, skep.Want{}, 0, 1))
}
