package resp

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// tenantsOf are the parts of two tenants that share a server.
func tenantsOf(t *testing.T, b *budget) (mine, other *auth.Held) {
	const tokenOne, tokenTwo = "one-token-0123456789", "two-token-0123456789"
	var creds []auth.Credential
	for tenant, token := range map[string]string{"one": tokenOne, "two": tokenTwo} {
		h, err := auth.TokenHash(token)
		require.NoError(t, err)
		creds = append(creds, auth.Credential{Name: tenant, Tenant: tenant, Rights: auth.All, TokenSHA256: h})
	}
	d, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	one, err := d.Identify(t.Context(), auth.Presented{Token: tokenOne})
	require.NoError(t, err)
	two, err := d.Identify(t.Context(), auth.Presented{Token: tokenTwo})
	require.NoError(t, err)
	return b.of(one.Limits()), b.of(two.Limits())
}

// Who holds all the memory it can get, and waits for more, keeps nobody else waiting.
func TestABudgetIsShared(t *testing.T) {
	t.Parallel()
	b := newBudget(16)
	mine, other := tenantsOf(t, b)
	for range 12 {
		require.True(t, b.TryAcquire(mine, 1))
	}
	require.False(t, b.TryAcquire(mine, 1))
	waits := make(chan error, 1)
	go func() { waits <- b.Acquire(t.Context(), mine, 2) }()
	require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.waiting) == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, b.Acquire(t.Context(), other, 3), "it passes who waits for its own share")
	b.Release(other, 3)
	b.Release(mine, 1)
	require.False(t, b.TryAcquire(mine, 1), "what is free now is for who came first")
	b.Release(mine, 1)
	require.NoError(t, <-waits)

	ctx, cancel := context.WithCancel(t.Context())
	for _, n := range []int64{4, 1} {
		go func() { waits <- b.Acquire(ctx, mine, n) }()
	}
	require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.waiting) == 2 }, time.Minute, time.Millisecond)
	cancel()
	for range 2 {
		require.ErrorIs(t, <-waits, skep.Deadline)
	}
	b.Release(mine, 12)
	require.Zero(t, b.pool.Used())
	require.Empty(t, b.waiting)
}

// Who gives up at the moment in which it is served gives back what it got.
func TestWhoGivesUpWhileItIsServedKeepsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(16)
		by := b.of(nil)
		require.True(t, b.TryAcquire(by, 16))
		ctx, cancel := context.WithCancel(t.Context())
		waits := make(chan error, 1)
		go func() { waits <- b.Acquire(ctx, by, 8) }()
		synctest.Wait()
		b.mu.Lock()
		cancel() // it wakes up, and finds the budget locked
		by.Give(16)
		b.serveLocked()
		require.Empty(t, b.waiting, "it is served")
		b.mu.Unlock()
		require.ErrorIs(t, <-waits, skep.Deadline)
		require.Zero(t, b.pool.Used())
		require.True(t, b.TryAcquire(by, 16))
	})
}

// Who waits for much is not overtaken by its tenant's who came later and want little: it would wait as long as they come.
func TestWhoWaitsForMuchIsNotOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(16)
		by := b.of(nil)
		require.True(t, b.TryAcquire(by, 16))
		var served []int64
		for _, n := range []int64{8, 4} {
			go func() {
				assert.NoError(t, b.Acquire(t.Context(), by, n))
				served = append(served, n)
			}()
			synctest.Wait()
		}
		b.Release(by, 4)
		synctest.Wait()
		require.Empty(t, served, "there is room for who came later")
		b.Release(by, 4)
		synctest.Wait()
		require.Equal(t, []int64{8}, served)
		b.Release(by, 8)
		synctest.Wait()
		require.Equal(t, []int64{8, 4}, served)
	})
}
