//go:build invariants

package locks

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLocksInOrder(t *testing.T) {
	t.Parallel()
	var (
		gate    RWMutex[SidecarPuts]
		changes Mutex[Changes]
		space   Mutex[Space]
		again   Mutex[Space]
		leaf    Mutex[Rate]
		other   Mutex[Repairs]
		handle  Mutex[MemoryHandle]
		second  Mutex[MemoryHandle]
		stray   Mutex[struct{}]
	)
	out := func(l sync.Locker, held string) {
		t.Helper()
		assert.PanicsWithValue(t, held, l.Lock)
	}
	gate.RLock()
	changes.Lock()
	space.Lock()
	out(&changes, "lock Changes is taken while these are held: SidecarPuts, Changes, Space")
	out(&again, "lock Space is taken while these are held: SidecarPuts, Changes, Space")
	leaf.Lock()
	out(&other, "lock Repairs is taken while these are held: SidecarPuts, Changes, Space, Rate")
	leaf.Unlock()
	gate.RUnlock() // in any order
	handle.Lock()
	through(&second)
	handle.Unlock()
	assert.True(t, again.TryLock(), "what does not wait may be tried")
	again.Unlock()
	assert.Panics(t, stray.Lock, "it has no place")

	var wg sync.WaitGroup
	wg.Go(func() { // what one goroutine holds is nothing to another
		through(&gate)
		changes.Unlock() // nor is it the taker's to give back
	})
	wg.Wait()
	space.Unlock()
	through(&gate) // panics where an end was not noted
}

// What a function requires is held by the goroutine that calls it.
func TestRequires(t *testing.T) {
	t.Parallel()
	var changes Mutex[Changes]
	missing := "lock Changes is required, and this goroutine does not hold it"
	requires := func() { Requires(&changes) }
	assert.PanicsWithValue(t, missing, requires)
	changes.Lock()
	assert.NotPanics(t, requires)
	var wg sync.WaitGroup
	wg.Go(func() { assert.PanicsWithValue(t, missing, requires) })
	wg.Wait()
	changes.Unlock()
	assert.PanicsWithValue(t, missing, requires)
}

// through takes a lock and gives it back.
func through(l sync.Locker) {
	l.Lock()
	defer l.Unlock()
}
