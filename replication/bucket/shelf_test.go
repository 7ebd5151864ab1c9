package bucket

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// shelf is a Bucket in memory that does what it is told.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte
	away    bool              // no call is answered
	lost    bool              // what is put is there, and the call fails
	once    bool              // lost, for one call
	late    bool              // what is put fails, and comes when arrive is called
	coming  map[string][]byte // it
	denies  func(call, name string) bool
	gone    string                      // Get says that what has it in its name is not there; "": it does not
	before  func(call, name string)     // is shown each call
	spoil   func(name string, b []byte) // is shown what Get gives
	listed  func(name string)           // is shown what List gave
	hangs   bool                        // Get gives nothing until its time is over
	given   int64                       // bytes that Get gave
	calls   map[string]int              // by name
	gets    []string                    // names
}

func newShelf() *shelf {
	return &shelf{objects: map[string][]byte{}, calls: map[string]int{}, coming: map[string][]byte{}}
}

func (s *shelf) enter(call, name string) error {
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before != nil {
		before(call, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[call]++
	if s.away {
		return &skep.Error{Op: "shelf", Kind: skep.Unavailable, Field: call}
	}
	if s.denies != nil && s.denies(call, name) {
		return &skep.Error{Op: "shelf", Kind: skep.Denied, Field: call}
	}
	return nil
}

// arrive has what was put and is late be there.
func (s *shelf) arrive() {
	s.set(func() {
		maps.Copy(s.objects, s.coming)
		clear(s.coming)
		s.late = false
	})
}

func (s *shelf) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *shelf) Put(_ context.Context, name string, body []byte) error {
	if err := s.enter("put", name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late && strings.Contains(name, blocksDir) {
		s.coming[name] = bytes.Clone(body)
		return &skep.Error{Op: "shelf", Kind: skep.Unavailable, Field: "answer"}
	}
	s.objects[name] = bytes.Clone(body)
	lost := s.lost || s.once
	s.once = false
	if lost {
		return &skep.Error{Op: "shelf", Kind: skep.Unavailable, Field: "answer"}
	}
	return nil
}

func (s *shelf) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if err := s.enter("get", name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangs {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	if n == 0 { // as servers do
		return nil, &skep.Error{Op: "shelf", Kind: skep.Unavailable, Field: "range", Value: n}
	}
	b, ok := s.objects[name]
	if !ok || s.gone != "" && strings.Contains(name, s.gone) {
		return nil, &skep.Error{Op: "shelf", Kind: skep.NotFound, Value: name}
	}
	if n < 0 {
		n = int64(len(b)) - off
	}
	b = bytes.Clone(b[off:min(off+n, int64(len(b)))])
	if s.spoil != nil {
		s.spoil(name, b)
	}
	s.gets = append(s.gets, name)
	s.given += int64(len(b))
	return b, nil
}

// List is none of one moment: what is put meanwhile is in it where its name comes later.
func (s *shelf) List(ctx context.Context, prefix string, each func(Object) error) error {
	if err := s.enter("list", prefix); err != nil {
		return err
	}
	for last := ""; ; {
		s.mu.Lock()
		var next *Object
		for name, body := range s.objects {
			if strings.HasPrefix(name, prefix) && name > last && (next == nil || name < next.Name) {
				next = &Object{name, int64(len(body))}
			}
		}
		listed := s.listed
		s.mu.Unlock()
		if next == nil {
			return ctx.Err()
		}
		last = next.Name
		if err := each(*next); err != nil {
			return err
		}
		if listed != nil {
			listed(last)
		}
	}
}

func (s *shelf) Delete(_ context.Context, names []string) error {
	for _, name := range names {
		if err := s.enter("delete", name); err != nil {
			return err
		}
		s.set(func() { delete(s.objects, name) })
	}
	return nil
}

// named are the names that have a text in them.
func (s *shelf) named(dir string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.objects {
		if strings.Contains(name, dir) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

const blockSize = 4096

var (
	testKey = bytes.Repeat([]byte{7}, KeySize)
	shape   = skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: blockSize}
)

// node is a node's Store with the shelf behind it.
type node struct {
	*Store
	t   *testing.T
	own *memstore.Store
	ns  skep.NamespaceID
}

// options are those of tests: everything is sent at once, and each round is one that the test asks for.
func options(b Bucket) Options {
	return Options{Bucket: b, Key: testKey, BeginAt: 1e-9, Unfound: true, Every: MaxEvery, ObjectBytes: 8 * blockSize,
		pause: time.Millisecond}
}

func newNode(t *testing.T, o Options, capacity int64) *node {
	t.Helper()
	own := memstore.New(memstore.Options{CapacityBytes: capacity, PoisonReleased: true})
	s, err := New(own, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	n := &node{Store: s, t: t, own: own}
	_ = n.turn() // its first round is over
	n.open("n")
	return n
}

// one is a node that has sent a chain of eight blocks.
func one(t *testing.T, b *shelf) (n *node, keys []skep.Key) {
	t.Helper()
	n, keys = newNode(t, options(b), 0), chain(1, 8)
	n.put(keys)
	n.look()
	return n, keys
}

func (n *node) open(name string) {
	n.t.Helper()
	info, err := n.OpenNamespace(n.t.Context(),
		skep.NamespaceSpec{Tenant: "t", Name: name, Model: "m", Shape: shape, Chained: true})
	require.NoError(n.t, err)
	n.ns = info.ID
}

func (n *node) scope() skep.Scope { return skep.Scope{Namespace: n.ns} }

// look has the node look at the bucket and send what is to be sent.
func (n *node) look() {
	n.t.Helper()
	require.NoError(n.t, n.turn())
}

// turn is look, and what becomes of it.
func (n *node) turn() error {
	told := make(chan error, 1)
	n.kick <- told
	return <-told
}

// chain is the keys of one, told from others by a number.
func chain(number, n int) []skep.Key {
	out := make([]skep.Key, n)
	var parent *skep.Key
	for i := range out {
		out[i] = skep.ChainKey(parent, []uint32{uint32(number), uint32(i)})
		parent = &out[i]
	}
	return out
}

func (n *node) put(keys []skep.Key) {
	n.t.Helper()
	r := &skep.PutRequest{Scope: n.scope()}
	for _, k := range keys {
		part := skep.Part{Name: skep.PartKV, Bytes: storetest.Payload(k, skep.PartKV, blockSize)}
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{part}})
	}
	_, err := n.Put(n.t.Context(), r)
	require.NoError(n.t, err)
}

// evict has the node's drives lose all they have, as if to make room.
func (n *node) evict() {
	n.t.Helper()
	_, err := n.own.Delete(n.t.Context(), n.scope(), n.keys())
	require.NoError(n.t, err)
}

// keys are those that the node's own Store has.
func (n *node) keys() []skep.Key {
	n.t.Helper()
	keys, _, err := n.own.ListKeys(n.t.Context(), n.ns, 0, 1<<20)
	require.NoError(n.t, err)
	return keys
}

func (n *node) find(keys []skep.Key) int {
	n.t.Helper()
	r, err := n.Lookup(n.t.Context(), &skep.LookupRequest{Scope: n.scope(), Keys: keys, Tiers: true})
	require.NoError(n.t, err)
	require.Len(n.t, r.Tiers, r.Blocks)
	require.Equal(n.t, r.Blocks*shape.BlockTokens, r.Tokens)
	return r.Blocks
}

// load restores blocks of a chain and says how many of them, from the first, came. No byte is wrong.
func (n *node) load(keys []skep.Key) (blocks int) {
	n.t.Helper()
	mem := make([]byte, len(keys)*layout.PageSize)
	missed := len(keys)
	err := skep.Load(n.t.Context(), n.Store, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: n.scope(), Keys: keys,
		Dest: skep.Destination{Memory: mem, Stride: blockSize}}}}, func(c *skep.Chunk) error {
		if c.Err != nil {
			missed = min(missed, c.Block)
			return nil
		}
		got := mem[c.Block*blockSize : (c.Block+1)*blockSize]
		assert.True(n.t, bytes.Equal(storetest.Payload(keys[c.Block], skep.PartKV, blockSize), got), "block %d", c.Block)
		return nil
	})
	require.NoError(n.t, err)
	return missed
}
