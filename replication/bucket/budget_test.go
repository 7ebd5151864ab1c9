package bucket

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Every call of the bucket is paid for: those that nobody can refuse are owed.
func TestEveryCallIsPaidFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no time passes
		b := newShelf()
		n := newNode(t, options(b), 0)
		keys := chain(1, 40)
		n.put(keys)
		n.look()
		_, err := n.Delete(t.Context(), n.scope(), keys[39:])
		require.NoError(t, err)
		o := options(b)
		o.Budget = Budget{MoneyDay: 1, LoadADay: 1, Prices: Prices{Write: 3, Read: 2, Byte: 1}}
		b.set(func() { clear(b.calls); b.given = 0 })
		other := newNode(t, o, 0)
		_, err = other.Delete(t.Context(), other.scope(), keys[38:39])
		require.NoError(t, err)
		require.Positive(t, b.calls["put"])
		require.EqualValues(t, -b.given, other.budget.load.has)
		writes, reads := b.calls["put"]+b.calls["list"], b.calls["get"]
		require.EqualValues(t, -(int64(3*writes+2*reads) + b.given), other.budget.money.has)
		require.Zero(t, other.find(keys), "nothing is left to fetch it with")
	})
}

// What one bound refuses costs nothing of another.
func TestWhatIsRefusedCostsNothing(t *testing.T) {
	t.Parallel()
	b := newBudget(Budget{SendADay: 1000, LoadADay: 1000, MoneyDay: 1000, Prices: Prices{Write: 1, Read: 1}})
	b.money.has = 10
	require.False(t, b.canSend(500))
	require.False(t, b.mayLoad(500))
	require.GreaterOrEqual(t, b.money.has, 10.)
	b.sent.has = b.sent.most
	require.True(t, b.canSend(1<<30), "what is more than is ever saved is owed")
	b.send(1 << 30)
	require.Negative(t, b.sent.has)
	require.Less(t, b.money.has, 10.)
}

// A fetch that took no time, by a coarse clock, leaves a speed that can be reckoned with.
func TestAFetchThatTookNoTime(t *testing.T) {
	t.Parallel()
	var s speed
	for range 3 {
		s.took(1<<20, 0)
		s.took(1<<20, time.Second)
	}
	_, rate := s.is()
	require.Greater(t, rate, 0.0)
	require.Less(t, rate, 1e13)
	require.Positive(t, s.of(1<<30))
}
