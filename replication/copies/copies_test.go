package copies

import (
	"context"
	"errors"
	"slices"
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

// A node is apart that lacks what another one has, or may have who did not answer, or what none has yet.
func TestWhoIsApart(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for _, x := range []struct {
		has, apart []bool
		errs       []error
	}{
		{[]bool{true, true}, []bool{false, false}, []error{nil, nil}},
		{[]bool{true, false}, []bool{false, true}, []error{nil, nil}},
		{[]bool{false, false}, []bool{true, true}, []error{nil, nil}},
		{[]bool{false, false}, []bool{true, true}, []error{away, away}},
		{[]bool{false, false}, []bool{true, false}, []error{nil, away}},
		{[]bool{true, false}, []bool{false, true}, []error{nil, away}},
	} {
		apart, err := Apart(x.has, x.errs)
		require.NoError(t, err)
		require.Equal(t, x.apart, apart, "%v", x)
	}
	require.Equal(t, 2, Count([]bool{true, false, true}))
}

// What a node has of a chain where no lookup would find it is wanted. It is found by its group, or behind the first of
// some that the node has one after another within a group, by that one's key.
func TestStraysAreWanted(t *testing.T) {
	t.Parallel()
	has, wants := skep.Want{Outcome: skep.Exists}, skep.Want{Wanted: true}
	list := []skep.Want{has, has, wants, has, has, has, has, wants}
	away := slices.Repeat([]skep.Want{{Reason: skep.Unavailable}}, 8)
	lists := [][]skep.Want{slices.Clone(list), slices.Clone(list), slices.Clone(away)}
	LeaveStrays(lists, 4, func(node, i int) bool { return node == 0 && i == 1 },
		func(_, i int) bool { return i == 3 || i == 4 })
	require.Equal(t, []skep.Want{wants, has, wants, has, has, has, has, wants}, lists[0])
	require.Equal(t, []skep.Want{wants, wants, wants, has, has, has, has, wants}, lists[1])
	require.Equal(t, away, lists[2])
	LeaveStrays(lists, 4, func(int, int) bool { return false }, func(_, i int) bool { return i == 3 })
	require.Equal(t, []skep.Want{wants, wants, wants, has, wants, wants, wants, wants}, lists[0], "a group ends")
}

// Who looks at what the nodes said of a commit has the last word.
func TestACommitIsLookedAt(t *testing.T) {
	t.Parallel()
	why := skep.PutResult{Reason: skep.Unavailable}
	for n, want := range []skep.PutResult{{Outcome: skep.Committed}, {Outcome: skep.Committed}, why} {
		away := func(error) (skep.Kind, bool) { return 0, false }
		w := NewWriter(1, away, func(_ context.Context, out []skep.PutResult) {
			for i := range n {
				out[i] = why
			}
		})
		w.Add(&fake{}, 0)
		w.Add(&fake{}, 0)
		out, err := w.Commit(t.Context(), skep.AckCommitted)
		require.NoError(t, err)
		require.Equal(t, want, out, "%d of 2 are declined", n)
	}
}

type fake struct{ skep.BlockWriter }

func (f *fake) Commit(context.Context, skep.Ack) (skep.PutResult, error) {
	return skep.PutResult{Outcome: skep.Committed}, nil
}
