//go:build invariants

package locks

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/petermattis/goid"
)

// Mutex is a sync.Mutex of the lock that R names. It panics when a goroutine takes it that holds a later one, or a
// leaf.
type Mutex[R any] struct {
	mu     sync.Mutex
	holder atomic.Int64
}

// Lock takes the lock.
func (m *Mutex[R]) Lock() {
	me := goid.Get()
	take(me, rankOf[R]())
	m.mu.Lock()
	m.holder.Store(me)
}

// TryLock takes the lock unless somebody has it. It cannot wait, so it may come in any order.
func (m *Mutex[R]) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	me := goid.Get()
	note(me, rankOf[R]())
	m.holder.Store(me)
	return true
}

// Unlock gives the lock back; any goroutine may.
func (m *Mutex[R]) Unlock() {
	who := m.holder.Swap(0)
	m.mu.Unlock()
	give(who, rankOf[R]())
}

// Requires panics where this goroutine does not hold m.
func Requires[R any](m *Mutex[R]) {
	if m.holder.Load() != goid.Get() {
		panic(fmt.Sprintf("lock %s is required, and this goroutine does not hold it", nameOf(rankOf[R]())))
	}
}

// RWMutex is a sync.RWMutex of the lock that R names. It panics as Mutex does. Who took it shared gives it back.
type RWMutex[R any] struct {
	mu     sync.RWMutex
	holder atomic.Int64
}

// Lock takes the lock for itself.
func (m *RWMutex[R]) Lock() {
	me := goid.Get()
	take(me, rankOf[R]())
	m.mu.Lock()
	m.holder.Store(me)
}

// Unlock gives the lock back; any goroutine may.
func (m *RWMutex[R]) Unlock() {
	who := m.holder.Swap(0)
	m.mu.Unlock()
	give(who, rankOf[R]())
}

// RLock takes the lock shared.
func (m *RWMutex[R]) RLock() {
	take(goid.Get(), rankOf[R]())
	m.mu.RLock()
}

// RUnlock gives the shared lock back.
func (m *RWMutex[R]) RUnlock() {
	m.mu.RUnlock()
	give(goid.Get(), rankOf[R]())
}

// held is what goroutines hold, in shards by goroutine.
var held [64]struct {
	sync.Mutex
	by map[int64][]int // positions in Order
}

var positions = func() map[reflect.Type]int {
	p := map[reflect.Type]int{}
	for i, l := range Order {
		p[reflect.TypeOf(l.Name)] = i
	}
	return p
}()

func rankOf[R any]() int {
	i, ok := positions[reflect.TypeFor[R]()]
	if !ok {
		panic(fmt.Sprintf("lock %v is not in locks.Order", reflect.TypeFor[R]()))
	}
	return i
}

func take(me int64, rank int) {
	shard := &held[me%int64(len(held))]
	shard.Lock()
	defer shard.Unlock()
	for _, r := range shard.by[me] {
		if Order[r].Leaf || r > rank || r == rank && !Order[r].Several {
			held := strings.Join(namesOf(shard.by[me]), ", ")
			panic(fmt.Sprintf("lock %s is taken while these are held: %s", nameOf(rank), held))
		}
	}
	if shard.by == nil {
		shard.by = map[int64][]int{}
	}
	shard.by[me] = append(shard.by[me], rank)
}

func note(me int64, rank int) {
	shard := &held[me%int64(len(held))]
	shard.Lock()
	defer shard.Unlock()
	if shard.by == nil {
		shard.by = map[int64][]int{}
	}
	shard.by[me] = append(shard.by[me], rank)
}

func give(who int64, rank int) {
	shard := &held[who%int64(len(held))]
	shard.Lock()
	defer shard.Unlock()
	list := shard.by[who]
	i := slices.Index(list, rank)
	switch {
	case i < 0:
		panic(fmt.Sprintf("lock %s is given back by a goroutine that does not hold it", nameOf(rank)))
	case len(list) == 1:
		delete(shard.by, who)
	default:
		shard.by[who] = slices.Delete(list, i, i+1)
	}
}

func nameOf(rank int) string { return reflect.TypeOf(Order[rank].Name).Name() }

func namesOf(ranks []int) (names []string) {
	for _, r := range ranks {
		names = append(names, nameOf(r))
	}
	return names
}
