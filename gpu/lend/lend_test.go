package lend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const ms = time.Millisecond

var times = Config{Lease: 100 * ms, Reclaim: 10 * ms}

// Lent, taken back in part, acknowledged only when the last copy is done.
func TestReclaim(t *testing.T) {
	t.Parallel()
	l, err := NewLender(10, 2, times)
	require.NoError(t, err)
	b := NewBorrower(7, 5)
	require.Equal(t, 10, l.Border())
	for _, m := range l.Lend(0, 7, 5, 100) {
		require.Equal(t, Message{Grant, 7, 5, 1, Units{2, 10}, 100 * ms}, m)
		require.Empty(t, b.Receive(m))
	}
	require.Equal(t, 2, l.Border(), "the floor stays")
	require.Empty(t, l.Lend(0, 7, 5, 1), "all are lent")
	require.Empty(t, l.Lend(0, 8, 5, 1), "there are none")

	require.True(t, b.Begin(1*ms, 3))
	require.True(t, b.Begin(1*ms, 8))
	revoke := l.Reclaim(2*ms, 6)
	require.Equal(t, []Message{{Revoke, 7, 5, 2, Units{6, 10}, 12 * ms}}, revoke)
	require.Empty(t, b.Receive(revoke[0]), "a copy is under way in unit 3")
	require.False(t, b.Begin(3*ms, 3))
	require.Equal(t, 2, l.Border(), "nothing is back")
	valid, acks := b.End(4*ms, 3)
	require.False(t, valid, "it was taken away meanwhile")
	require.Equal(t, []Message{{Kind: Ack, Borrower: 7, Life: 5, Epoch: 2, Units: Units{6, 10}}}, acks)
	require.Equal(t, []Message{{Grant, 7, 5, 2, Units{6, 10}, 105 * ms}}, l.Receive(5*ms, acks[0]))
	require.Equal(t, 6, l.Border())
	valid, _ = b.End(6*ms, 8)
	require.True(t, valid, "it kept that one")
	require.Equal(t, acks, b.Receive(revoke[0]), "asked again, it says it again")
}

// A border that moves down again gives the borrower more next to what it has, which it goes
// on believing; what it had to give back in between it does not.
func TestMore(t *testing.T) {
	t.Parallel()
	l, err := NewLender(10, 0, times)
	require.NoError(t, err)
	b := NewBorrower(1, 9)
	b.Receive(l.Lend(0, 1, 9, 6)[0]) // [4, 10)
	revoke := l.Reclaim(1*ms, 7)
	require.Empty(t, l.Lend(1*ms, 1, 9, 1), "it owes an Ack")
	ack := b.Receive(revoke[0])
	l.Receive(2*ms, ack[0])
	require.Empty(t, l.Lend(3*ms, 1, 8, 2), "another life")
	more := l.Lend(3*ms, 1, 9, 2)
	require.Equal(t, []Message{{Grant, 1, 9, 3, Units{5, 10}, 102 * ms}}, more, "the lease is as it was")
	renewed := l.Receive(4*ms, b.Renew()) // the grant is lost; it comes again
	require.Equal(t, []Message{{Grant, 1, 9, 3, Units{5, 10}, 104 * ms}}, renewed)
	b.Receive(renewed[0])
	require.Equal(t, Units{5, 10}, b.Units(5*ms))
	require.EqualValues(t, 3, b.Since(5))
	require.EqualValues(t, 1, b.Since(7))
	require.Equal(t, []Loan{{Borrower: 1, Life: 9, Epoch: 3, Units: Units{5, 10}, Keeps: Units{5, 10}, By: 11 * ms, Until: 104 * ms}}, l.Loans())

	// It leaves while more is on its way to it.
	require.True(t, b.Begin(5*ms, 9))
	l.Lend(5*ms, 1, 9, 5)
	require.Empty(t, b.Return(), "a copy is under way")
	_, out := b.End(6*ms, 9)
	require.Equal(t, []Message{{Kind: Return, Borrower: 1, Life: 9, Epoch: 3}}, out)
	again := l.Receive(7*ms, out[0])
	require.Equal(t, Grant, again[0].Kind, "it may be using what was granted meanwhile")
	require.Zero(t, l.Border())
	out = b.Receive(again[0])
	require.Empty(t, l.Receive(8*ms, out[0]))
	require.Equal(t, 10, l.Border())
	require.Empty(t, l.Loans())
}

// The border may move again before a borrower's Ack is there: what that gave back is the lender's, and the borrower has
// all of its time for the rest. So it is with what it leaves.
func TestTheBorderMovesBeforeAnAck(t *testing.T) {
	t.Parallel()
	l, err := NewLender(10, 0, times)
	require.NoError(t, err)
	b := NewBorrower(1, 9)
	b.Receive(l.Lend(0, 1, 9, 10)[0])
	first := b.Receive(l.Reclaim(1*ms, 4)[0])
	second := b.Receive(l.Reclaim(8*ms, 6)[0])
	rest := l.Receive(9*ms, first[0])
	require.Equal(t, []Message{{Revoke, 1, 9, 3, Units{6, 10}, 18 * ms}}, rest)
	require.Equal(t, 4, l.Border())
	require.Equal(t, Revoke, l.Tick(17 * ms)[0].Kind, "not ended: it kept the deadline")
	l.Receive(17*ms, second[0])
	require.Equal(t, 6, l.Border())

	b.Receive(l.Lend(18*ms, 1, 9, 4)[0])
	last := l.Reclaim(19*ms, 7)
	l.Receive(20*ms, second[0])
	require.Equal(t, 2, l.Border(), "an Ack from before a grant says nothing of it")
	out := b.Return()
	l.Reclaim(21*ms, 8)
	require.Empty(t, l.Receive(22*ms, out[0]))
	require.Equal(t, 10, l.Border(), "it left, and nothing was granted since")
	require.EqualValues(t, 5, last[0].Epoch)
}

// A borrower acknowledges a revocation as soon as its copies are done, whatever a newer one waits for, and when it leaves,
// too: it is not ended for what it did in time.
func TestAnAckDoesNotWaitForNewerRevocations(t *testing.T) {
	t.Parallel()
	for _, leaves := range []bool{false, true} {
		l, err := NewLender(10, 0, times)
		require.NoError(t, err)
		b := NewBorrower(1, 9)
		b.Receive(l.Lend(0, 1, 9, 10)[0])
		for _, unit := range []int{1, 5, 8} {
			require.True(t, b.Begin(0, unit))
		}
		require.Empty(t, b.Receive(l.Reclaim(1*ms, 4)[0]))
		require.Empty(t, b.Receive(l.Reclaim(8*ms, 6)[0]))
		if leaves {
			require.Empty(t, b.Return())
		}
		_, out := b.End(10*ms, 1)
		require.Equal(t, []Message{{Kind: Ack, Borrower: 1, Life: 9, Epoch: 2, Units: Units{4, 10}}}, out)
		again := l.Receive(10*ms, out[0])
		require.Equal(t, []Message{{Revoke, 1, 9, 3, Units{6, 10}, 18 * ms}}, again)
		require.Equal(t, 4, l.Border())
		require.Empty(t, b.Receive(again[0]), "a copy is under way in unit 5")
		require.Equal(t, Revoke, l.Tick(17 * ms)[0].Kind, "not ended: it kept the deadline")
		_, out = b.End(17*ms, 5)
		require.Equal(t, []Message{{Kind: Ack, Borrower: 1, Life: 9, Epoch: 3, Units: Units{6, 10}}}, out)
		grant := l.Receive(17*ms, out[0])
		require.Equal(t, []Message{{Grant, 1, 9, 3, Units{6, 10}, 117 * ms}}, grant)
		require.Empty(t, b.Receive(grant[0]))
		require.Equal(t, 6, l.Border())
		_, out = b.End(18*ms, 8)
		require.Equal(t, leaves, len(out) == 1 && out[0].Kind == Return)
	}
}

// Neither a deadline nor the end of a lease gives memory back: the end of the process does.
func TestStuckBorrower(t *testing.T) {
	t.Parallel()
	l, err := NewLender(4, 0, times)
	require.NoError(t, err)
	b := NewBorrower(1, 0)
	b.Receive(l.Lend(0, 1, 0, 4)[0])
	require.True(t, b.Begin(0, 0))
	b.Receive(l.Reclaim(1*ms, 4)[0])
	require.Equal(t, Revoke, l.Tick(5 * ms)[0].Kind, "repeated")
	require.Equal(t, []Message{{Kind: Kill, Borrower: 1, Epoch: 2}}, l.Tick(11*ms))
	require.Empty(t, l.Tick(12*ms), "once")
	require.Zero(t, l.Border())
	require.Empty(t, l.Receive(13*ms, Message{Kind: Ack, Borrower: 1, Epoch: 2}), "too late to be believed")
	l.Gone(1)
	require.Equal(t, 4, l.Border())
	grant := l.Lend(14*ms, 1, 0, 2)
	require.EqualValues(t, 4, grant[0].Epoch, "no epoch twice")
	require.Equal(t, Units{1, 4}, l.Lend(14*ms, 1, 0, 1)[0].Units, "one range a borrower")
	l.Gone(1)

	quiet := NewBorrower(2, 0)
	quiet.Receive(l.Lend(20*ms, 2, 0, 1)[0])
	require.True(t, quiet.Begin(119*ms, 3))
	require.False(t, quiet.Begin(120*ms, 3), "its lease has ended")

	silent, err := NewLender(4, 0, times)
	require.NoError(t, err)
	silent.Lend(0, 1, 0, 4)
	for at := 1 * ms; at < 110*ms; at += 9 * ms {
		require.Empty(t, silent.Tick(at))
	}
	require.Equal(t, Kill, silent.Tick(110 * ms)[0].Kind)
}

// A lender that was stopped for long has read no mail: who owed it an Ack, or a renewal, has
// after that the time it had before.
func TestStoppedLender(t *testing.T) {
	t.Parallel()
	l, err := NewLender(4, 0, times)
	require.NoError(t, err)
	b := NewBorrower(1, 7)
	b.Receive(l.Lend(1*ms, 1, 7, 4)[0])
	require.Empty(t, l.Tick(5*ms))
	ack := b.Receive(l.Reclaim(6*ms, 2)[0])
	require.False(t, b.Begin(5000*ms, 3), "it uses nothing meanwhile: its lease ended")
	require.Equal(t, Revoke, l.Tick(5000 * ms)[0].Kind, "the Ack is there, and not read yet")
	require.Equal(t, Grant, l.Receive(5001*ms, ack[0])[0].Kind)
	require.Equal(t, 2, l.Border())
	require.Empty(t, l.Tick(5005*ms))

	l.Reclaim(5005*ms, 4)
	require.Equal(t, Revoke, l.Tick(9000 * ms)[0].Kind)
	require.Equal(t, Revoke, l.Tick(9005 * ms)[0].Kind)
	require.Equal(t, Kill, l.Tick(9012 * ms)[0].Kind, "no longer than that")
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{}, {Lease: 1}, {Reclaim: 1}, {Lease: 2 * time.Hour, Reclaim: 1}} {
		_, err := NewLender(1, 0, c)
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err := NewLender(1, 2, times)
	require.ErrorIs(t, err, skep.Invalid)
}

// Borrowers in their order have equal shares at most, never more than they want, and grow only next to
// what they have; the floor stays.
func TestShare(t *testing.T) {
	t.Parallel()
	l, err := NewLender(16, 2, times)
	require.NoError(t, err)
	wants := []Want{{Borrower: 0, Life: 1}, {Borrower: 1, Life: 1, Units: 3}, {Borrower: 2, Life: 1}}
	lent := func(down int) (out []Units) {
		l.Share(0, down, 3, wants)
		for i := range wants {
			out = append(out, l.Lent(i))
		}
		return out
	}
	require.Equal(t, []Units{{14, 16}, {}, {}}, lent(14))
	require.Equal(t, []Units{{12, 16}, {10, 12}, {}}, lent(10), "four are a third of fourteen")
	require.Equal(t, []Units{{12, 16}, {9, 12}, {5, 9}}, lent(0), "one wants three")
	require.Equal(t, 5, l.Border(), "and nobody has what is left")

	small, err := NewLender(4, 2, times)
	require.NoError(t, err)
	small.Share(0, 0, 3, wants)
	require.Equal(t, 2, small.Border(), "a unit is the least")
	require.Equal(t, []int{1, 1, 0}, []int{small.Lent(0).Len(), small.Lent(1).Len(), small.Lent(2).Len()})
}
