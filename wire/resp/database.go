package resp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// database is one numbered database of a tenant: two unchained namespaces, one of
// heads and one of pieces.
type database struct {
	store  skep.Store
	clock  func() time.Time
	tenant *tenant
	number int
	heads  skep.NamespaceID
	data   skep.NamespaceID
	reap   *reaper

	locks   [64]sync.Mutex // of keys, by hash: who changes a head holds its key's
	known   headCache
	reading readers
	changes atomic.Uint64 // keys that came or went, for listings
	list    listings
}

// Names of a database's namespaces.
func headsName(n int) string { return fmt.Sprintf("resp/%d", n) }
func dataName(n int) string  { return fmt.Sprintf("resp/%d/data", n) }

func openDatabase(ctx context.Context, s *Server, t *tenant, n int) (*database, error) {
	db := &database{store: s.store, clock: s.o.Clock, tenant: t, number: n, reap: s.reap}
	for _, ns := range []struct {
		name string
		id   *skep.NamespaceID
	}{{headsName(n), &db.heads}, {dataName(n), &db.data}} {
		info, err := s.store.OpenNamespace(ctx, skep.NamespaceSpec{
			Tenant: t.name, Name: ns.name, Copies: s.o.Copies, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1},
		})
		if err != nil {
			return nil, err
		}
		*ns.id = info.ID
	}
	db.known.init()
	db.reading.m = map[pieceID]*reader{}
	return db, nil
}

// ids counts pieces' ids: random where this process began, so that no two runs meet.
var ids = func() func() pieceID {
	var start [16]byte
	if _, err := rand.Read(start[:]); err != nil {
		panic(err) // crypto/rand documents that it does not fail
	}
	var n atomic.Uint64
	return func() pieceID {
		id := start
		binary.BigEndian.PutUint64(id[8:], binary.BigEndian.Uint64(start[8:])+n.Add(1))
		return id
	}
}()

var seed = maphash.MakeSeed()

// lock locks the keys' stripes, each once and in order, and gives what unlocks them.
func (db *database) lock(keys ...[]byte) func() {
	stripes := make([]int, 0, len(keys))
	for _, k := range keys {
		stripes = append(stripes, int(maphash.Bytes(seed, k)%uint64(len(db.locks))))
	}
	slices.Sort(stripes)
	stripes = slices.Compact(stripes)
	for _, i := range stripes {
		db.locks[i].Lock()
	}
	return func() {
		for _, i := range stripes {
			db.locks[i].Unlock()
		}
	}
}

// isMiss says whether err is one after which the bytes are simply not there.
func isMiss(err error) bool {
	switch skep.KindOf(err) {
	case skep.NotFound, skep.Evicted, skep.Stopped, skep.Deadline, skep.DeviceFailed, skep.NoMemory, skep.Missing:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// absent says that err is what a key that is not there gives.
func absent(err error) bool {
	k := skep.KindOf(err)
	return k == skep.NotFound || k == skep.Evicted
}

// errNone is returned for a key that is not there, or has expired.
var errNone = &skep.Error{Op: "get", Kind: skep.NotFound}

// head finds a key: its head, or errNone, or what went wrong.
func (db *database) head(ctx context.Context, key []byte) (*head, error) {
	heads, errs := db.headsOf(ctx, [][]byte{key})
	return heads[0], errs[0]
}

// headsOf finds keys, in one session. For each there is a head or an error. What has
// expired is errNone, and leaves soon after.
func (db *database) headsOf(ctx context.Context, keys [][]byte) ([]*head, []error) {
	out, errs := db.stored(ctx, keys)
	now := db.clock()
	for i, h := range out {
		if h != nil && h.expired(now) {
			out[i], errs[i] = nil, errNone
			db.reap.expired(db, keys[i])
		}
	}
	return out, errs
}

// stored finds keys, expired ones too.
func (db *database) stored(ctx context.Context, keys [][]byte) ([]*head, []error) {
	out, errs := make([]*head, len(keys)), make([]error, len(keys))
	var names []skep.Key
	var ask []int
	for i, k := range keys {
		if out[i] = db.known.get(k); out[i] == nil {
			names = append(names, skep.KeyOf(k))
			ask = append(ask, i)
		}
	}
	if len(ask) == 1 { // an index tells of a miss cheaper than a session
		found, err := db.store.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: db.heads}, Keys: names, Lease: skep.NoLease})
		if err == nil && found.Blocks == 0 {
			err = errNone
		}
		if err != nil {
			errs[ask[0]] = err
			return out, errs
		}
	}
	if len(ask) == 0 {
		return out, errs
	}
	err := eachBlock(ctx, db.store, db.heads, names, func(j int, b []byte, err error) {
		i := ask[j]
		if err == nil {
			out[i], err = decodeHead(b)
		}
		if err == nil && !bytes.Equal(out[i].key, keys[i]) {
			out[i], err = nil, errNone // another key of the same hash
		}
		errs[i] = err
		if err == nil {
			db.known.put(out[i])
		}
	})
	for _, i := range ask {
		if err != nil && out[i] == nil && errs[i] == nil {
			errs[i] = err
		}
	}
	return out, errs
}

// eachBlock restores small blocks and calls f once for each, in any order, with bytes
// that are f's to keep or why there are none. The error is of the session as a whole.
func eachBlock(ctx context.Context, st skep.Store, ns skep.NamespaceID, keys []skep.Key, f func(i int, b []byte, err error)) error {
	deadline, _ := ctx.Deadline()
	ses, err := st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: skep.Scope{Namespace: ns}, Keys: keys, Deadline: deadline}}})
	if err != nil {
		return err
	}
	defer closeSession(ses)
	var chunks [16]skep.Chunk
	for {
		n, err := ses.Next(ctx, chunks[:])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range chunks[:n] {
			c := &chunks[i]
			var b []byte
			if c.Err == nil {
				b = make([]byte, 0, c.Bytes)
				for _, d := range c.Data {
					b = append(b, d...)
				}
			}
			f(c.Block, b, c.Err)
			c.Release()
		}
	}
}

// closeTimeout is how long a session's end is waited for; memory a drive still holds
// after it stays the store's.
const closeTimeout = 5 * time.Second

func closeSession(ses skep.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = ses.Close(ctx) // NotReleased: lent memory is the store's, there is nothing to do
}

// whole says whether all of a value is there. An answer that does not come is no.
func (db *database) whole(ctx context.Context, h *head) bool {
	n := h.pieces()
	if n == 0 {
		return true
	}
	found, err := db.store.Lookup(ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: db.data}, Keys: h.pieceKeys(0, n), Lease: skep.NoLease})
	return err == nil && found.Blocks == n
}

// put stores heads in one call: what is given together is placed together.
// REQUIRES: the locks of their keys.
func (db *database) put(ctx context.Context, heads []*head) []error {
	errs := make([]error, len(heads))
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: db.heads}, Blocks: make([]skep.Block, len(heads))}
	for i, h := range heads {
		r.Blocks[i] = skep.Block{Key: skep.KeyOf(h.key), Parts: []skep.Part{{Bytes: h.encode()}}}
		if len(h.key) <= skep.MaxBlockNameSize {
			r.Blocks[i].Name = h.key
		}
	}
	results, err := db.store.Put(ctx, r)
	for i, h := range heads {
		switch {
		case err != nil:
			errs[i] = err
		case results[i].Outcome == skep.Declined:
			errs[i] = &skep.Error{Op: "set", Kind: results[i].Reason}
		}
		if errs[i] != nil {
			db.known.forget(h.key)
		} else {
			db.known.put(h)
		}
	}
	db.changes.Add(1)
	return errs
}

// delete removes keys and says how many were there.
func (db *database) delete(ctx context.Context, keys [][]byte) (int, error) {
	defer db.lock(keys...)()
	return db.deleteLocked(ctx, keys, func(h *head) bool { return true })
}

// deleteLocked deletes those of keys whose head which accepts. Expired ones do not count.
// REQUIRES: the locks of keys.
func (db *database) deleteLocked(ctx context.Context, keys [][]byte, which func(*head) bool) (int, error) {
	heads, errs := db.stored(ctx, keys)
	now := db.clock()
	n := 0
	var names []skep.Key
	seen := map[string]bool{}
	var gone []*head
	for i, h := range heads {
		if seen[string(keys[i])] {
			continue
		}
		seen[string(keys[i])] = true
		if absent(errs[i]) {
			continue
		}
		if h != nil && !which(h) {
			continue
		}
		names = append(names, skep.KeyOf(keys[i])) // what cannot be read is deleted unread
		if h == nil || !h.expired(now) {
			n++
		}
		if h != nil {
			gone = append(gone, h)
		}
		db.known.forget(keys[i])
	}
	if len(names) == 0 {
		return 0, nil
	}
	_, err := db.store.Delete(ctx, skep.Scope{Namespace: db.heads}, names)
	db.changes.Add(1)
	if err != nil {
		return 0, err
	}
	for _, h := range gone {
		db.doom(h)
	}
	return n, nil
}

// doom lets go of a value's pieces once nobody reads them. Until they are deleted the
// store need not carry them on.
func (db *database) doom(h *head) {
	if h.piece != 0 && db.reading.doom(h.id, h) {
		_, _ = db.store.Hint(context.Background(), skep.Scope{Namespace: db.data}, h.pieceKeys(0, h.pieces()), skep.Hint{Drop: true})
		db.reap.pieces(db, h)
	}
}

// readers counts who streams which pieces, so that replacing a value does not cut
// those off who are reading the old one.
type readers struct {
	mu sync.Mutex
	m  map[pieceID]*reader
}

type reader struct {
	n      int
	doomed *head
}

func (r *readers) begin(id pieceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[id] == nil {
		r.m[id] = &reader{}
	}
	r.m[id].n++
}

// end gives the head to be reaped when this was the last reader of a doomed value.
func (r *readers) end(id pieceID) *head {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.m[id]
	if x.n--; x.n > 0 {
		return nil
	}
	delete(r.m, id)
	return x.doomed
}

// doom says whether nobody reads the value; else the last reader's end will tell.
func (r *readers) doom(id pieceID, h *head) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.m[id]
	if x == nil {
		return true
	}
	x.doomed = h
	return false
}

// headCache keeps heads of values in pieces, so that a GET is one session and not two.
// It holds at most cachedHeads of at most cachedKeyBytes each and drops any one for
// room. Within the server it is exact, since who changes a head holds its key's lock;
// what it may not know (an eviction, a purge) shows in that the pieces are gone.
type headCache struct {
	mu sync.RWMutex
	m  map[string]*head
}

const (
	cachedHeads    = 1 << 15
	cachedKeyBytes = 512
)

func (c *headCache) init() { c.m = map[string]*head{} }

func (c *headCache) get(key []byte) *head {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.m[string(key)]
}

func (c *headCache) put(h *head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.piece == 0 || len(h.key) > cachedKeyBytes {
		delete(c.m, string(h.key))
		return
	}
	if len(c.m) >= cachedHeads {
		for k := range c.m {
			delete(c.m, k)
			break
		}
	}
	c.m[string(h.key)] = &head{key: bytes.Clone(h.key), size: h.size, expiry: h.expiry, id: h.id, piece: h.piece}
}

func (c *headCache) clear() {
	c.mu.Lock()
	clear(c.m)
	c.mu.Unlock()
}

func (c *headCache) forget(key []byte) {
	c.mu.Lock()
	delete(c.m, string(key))
	c.mu.Unlock()
}
