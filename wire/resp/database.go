package resp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
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
	reap   *reaper

	server  *Server
	opening sync.Mutex
	made    atomic.Bool // heads and data are set; before, the database is empty
	heads   skep.NamespaceID
	data    skep.NamespaceID

	locks   [stripes]sync.Mutex // of keys: who changes a head holds its key's
	reading readers
}

// Names of a database's namespaces.
const (
	spacePrefix = "resp/"
	dataSuffix  = "/data"
)

func headsName(n int) string { return fmt.Sprintf(spacePrefix+"%d", n) }
func dataName(n int) string  { return headsName(n) + dataSuffix }

func newDatabase(s *Server, t *tenant, n int) *database {
	db := &database{server: s, store: s.store, clock: s.o.Clock, tenant: t, number: n, reap: s.reap}
	db.reading.m = map[pieceID]*reader{}
	return db
}

// make makes the database's namespaces where they are not there.
func (db *database) make(ctx context.Context) error {
	if db.made.Load() {
		return nil
	}
	var ids [2]skep.NamespaceID
	for i, name := range []string{headsName(db.number), dataName(db.number)} {
		info, err := db.store.OpenNamespace(ctx, skep.NamespaceSpec{
			Tenant: db.tenant.name, Name: name, Copies: db.server.o.Copies, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1},
		})
		if skep.KindOf(err) == skep.Conflict { // made with another number of copies, which it keeps
			if found := db.find(ctx); found != nil || db.made.Load() {
				return found
			}
		}
		if err != nil {
			return err
		}
		ids[i] = info.ID
	}
	db.open(ids)
	return nil
}

// find looks whether the database is there: who reads makes none.
func (db *database) find(ctx context.Context) error {
	if db.made.Load() {
		return nil
	}
	ids, err := db.server.spaces.find(ctx, db.store, db.tenant.name, headsName(db.number), dataName(db.number))
	if err == nil && ids[0] != 0 && ids[1] != 0 && there(ctx, db.store, ids[:]...) {
		db.open(ids)
		db.tellCopies(ctx)
	}
	return err
}

// tellCopies warns where the database was made with another number of copies than is set now.
func (db *database) tellCopies(ctx context.Context) {
	set := db.server.o.Copies
	info, err := db.store.FindNamespace(ctx, db.heads)
	if err == nil && set != 0 && info.Copies != set {
		db.server.o.Log.Warn("a database keeps the copies that it was made with: delete it to have it made with "+
			"those that are set",
			"tenant", info.Tenant, "namespace", info.Name, "copies", info.Copies, "redis.copies", set)
	}
}

// there says that no namespace of those was deleted.
func there(ctx context.Context, st skep.Store, ids ...skep.NamespaceID) bool {
	for _, id := range ids {
		if _, err := st.FindNamespace(ctx, id); skep.KindOf(err) == skep.NotFound {
			return false
		}
	}
	return true
}

func (db *database) open(ids [2]skep.NamespaceID) {
	db.opening.Lock()
	defer db.opening.Unlock()
	if !db.made.Load() {
		db.heads, db.data = ids[0], ids[1]
		db.made.Store(true)
	}
}

// spaces is what namespaces of databases there are, as of a moment ago: the store lists all it has, so that is
// done once a second, however many ask for what is not there. What this server makes it knows at once.
type spaces struct {
	mu sync.Mutex
	at time.Time
	m  map[[2]string]skep.NamespaceID // by tenant and name
}

const spacesFor = time.Second

// forget has the next who asks look anew.
func (s *spaces) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m = nil
}

func (s *spaces) find(ctx context.Context, st skep.Store, tenant string, names ...string) (ids [2]skep.NamespaceID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || time.Since(s.at) > spacesFor {
		all, err := st.Namespaces(ctx)
		if err != nil {
			return ids, err
		}
		s.m, s.at = map[[2]string]skep.NamespaceID{}, time.Now()
		for i := range all {
			if n := &all[i]; strings.HasPrefix(n.Name, spacePrefix) {
				s.m[[2]string{n.Tenant, n.Name}] = n.ID
			}
		}
	}
	for i, name := range names {
		ids[i] = s.m[[2]string{tenant, name}]
	}
	return ids, nil
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

// stripes is how many parts keys fall into, by hash.
const stripes = 64

var seed = maphash.MakeSeed()

func stripe(key []byte) int { return int(maphash.Bytes(seed, key) % stripes) }

// lock locks the keys' stripes, each once and in order, and gives what unlocks them.
func (db *database) lock(keys ...[]byte) func() {
	of := make([]int, 0, len(keys))
	for _, k := range keys {
		of = append(of, stripe(k))
	}
	slices.Sort(of)
	of = slices.Compact(of)
	for _, i := range of {
		db.locks[i].Lock()
	}
	return func() {
		for _, i := range of {
			db.locks[i].Unlock()
		}
	}
}

// flush empties the database. No head is stored meanwhile: one whose pieces it takes would be left, and one whose pieces
// are stored after it would go.
func (db *database) flush(ctx context.Context) error {
	for i := range db.locks {
		db.locks[i].Lock()
		defer db.locks[i].Unlock()
	}
	for _, ns := range []skep.NamespaceID{db.heads, db.data} {
		if err := db.store.Purge(ctx, skep.Purge{Namespace: ns}); err != nil {
			return err
		}
	}
	return nil
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

// head finds a key whose value is there, all of it: its head, or errNone, or what went wrong.
func (db *database) head(ctx context.Context, key []byte) (*head, error) {
	heads, errs := db.headsOf(ctx, [][]byte{key}, true)
	if errs[0] != nil {
		return nil, errs[0]
	}
	whole, err := db.whole(ctx, heads[0])
	if err == nil && !whole {
		err = errNone
	}
	if err != nil {
		return nil, err
	}
	return heads[0], nil
}

// headsOf finds keys, in one session. For each there is a head or an error. What has
// expired is errNone, and leaves soon after. Small values come along when they are wanted (values); whether
// the pieces of the others are there is not looked at.
func (db *database) headsOf(ctx context.Context, keys [][]byte, values bool) ([]*head, []error) {
	out, errs := db.stored(ctx, keys, values)
	now := db.clock()
	for i, h := range out {
		if h != nil && h.expired(now) {
			out[i], errs[i] = nil, errNone
			db.reap.expired(db, keys[i])
		}
	}
	return out, errs
}

// stored finds keys, expired ones too. Without their values, a head takes some hundred bytes, whatever it is of.
//
// Heads are read from the store each time, and kept nowhere. So none is older than what anybody was told, whoever wrote,
// deleted, purged or evicted it; and a value that is read is used in the store's eyes with its head, which would else be
// evicted before it.
func (db *database) stored(ctx context.Context, keys [][]byte, values bool) ([]*head, []error) {
	out, errs := make([]*head, len(keys)), make([]error, len(keys))
	fail := func(err error) ([]*head, []error) {
		for i := range errs {
			if out[i] == nil && errs[i] == nil {
				errs[i] = err
			}
		}
		return out, errs
	}
	if !db.made.Load() {
		return fail(errNone)
	}
	names := make([]skep.Key, len(keys))
	for i, k := range keys {
		names[i] = skep.KeyOf(k)
	}
	at, err := db.asked(ctx, names)
	if err != nil {
		return fail(err)
	}
	for i := range errs {
		errs[i] = errNone
	}
	read := make([]skep.Key, len(at))
	for j, i := range at {
		read[j], errs[i] = names[i], nil
	}
	if len(read) == 0 {
		return out, errs
	}
	err = eachBlock(ctx, db.store, db.heads, read, func(i int, b []byte, err error) {
		i = at[i]
		if err == nil {
			out[i], err = decodeHead(b)
		}
		if err == nil && !bytes.Equal(out[i].key, keys[i]) {
			out[i], err = nil, errNone // another key of the same hash
		}
		if err == nil && !values {
			out[i].key, out[i].inline = keys[i], nil
		}
		errs[i] = err
	})
	if err != nil {
		return fail(err)
	}
	return out, errs
}

// asked looks heads up, and gives which of them to read. It is what counts as a reader's lookups, one a key; an index
// tells of a miss cheaper than a session. Who is no reader, and asks for several, reads them all.
func (db *database) asked(ctx context.Context, names []skep.Key) (at []int, err error) {
	scope := skep.Scope{Namespace: db.heads}
	r := &skep.RunsRequest{Scope: scope, Lease: skep.NoLease}
	for i := range names {
		at, r.Runs = append(at, i), append(r.Runs, names[i:i+1])
	}
	switch {
	case len(names) == 1:
		found, err := db.store.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: names, Lease: skep.NoLease})
		return at[:min(found.Blocks, 1)], err
	case !skep.Counts(ctx):
		return at, nil
	}
	found, err := db.store.LookupRuns(ctx, r)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(at, func(i int) bool { return found.Runs[i].Blocks == 0 }), nil
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
	return skep.Drain(ctx, ses, func(c *skep.Chunk) error {
		var b []byte
		if c.Err == nil {
			b = c.AppendTo(make([]byte, 0, c.Bytes))
		}
		f(c.Block, b, c.Err)
		return nil
	})
}

// closeTimeout is how long a session's end is waited for; memory a drive still holds
// after it stays the store's.
const closeTimeout = 5 * time.Second

func closeSession(ses skep.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = ses.Close(ctx) // NotReleased: lent memory is the store's, there is nothing to do
}

// whole says whether all pieces of a value are there. Its head was asked for.
func (db *database) whole(ctx context.Context, h *head) (bool, error) {
	n := h.pieces()
	if n == 0 {
		return true, nil
	}
	found, err := db.store.Lookup(skep.Continued(ctx),
		&skep.LookupRequest{Scope: skep.Scope{Namespace: db.data}, Keys: h.pieceKeys(0, n), Lease: skep.NoLease})
	return err == nil && found.Blocks == n, err
}

// counts says that a head is of a value that is there, as far as can be told.
func (db *database) counts(ctx context.Context, h *head) bool {
	whole, err := db.whole(ctx, h)
	return whole || err != nil
}

// put stores heads in one call: what is given together is placed together.
// REQUIRES: the locks of their keys.
func (db *database) put(ctx context.Context, heads []*head) []error {
	errs := make([]error, len(heads))
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: db.heads}, Blocks: make([]skep.Block, len(heads))}
	for i, h := range heads {
		// No name: a tenant's encryption is of payload, and names lie in the clear.
		r.Blocks[i] = skep.Block{Key: skep.KeyOf(h.key), Parts: []skep.Part{{Bytes: h.encode()}}}
	}
	results, err := db.store.Put(ctx, r)
	err, _ = skep.Held(err) // their memory is nobody else's
	for i := range heads {
		switch {
		case err != nil:
			errs[i] = err
		case results[i].Outcome == skep.Declined:
			errs[i] = db.declined("set", db.heads, r.Blocks[i].Key, results[i].Reason)
		}
	}
	return errs
}

// declined is why a block was not taken: of a node that does not answer its name, where the Store tells.
func (db *database) declined(op string, ns skep.NamespaceID, k skep.Key, why skep.Kind) error {
	e := &skep.Error{Op: op, Kind: why}
	if why == skep.Denied { // else the whole put is an error
		e.Field, e.Value = "encryption key of the tenant", "not at every node"
		e.Limit = "given to the node of this key, too: other nodes encrypt"
	}
	if why == skep.Unavailable {
		if c, ok := skep.As[interface {
			NodeOf(skep.NamespaceID, skep.Key) string
		}](db.store); ok {
			if name := c.NodeOf(ns, k); name != "" {
				e.Field, e.Value, e.Limit = "node", name, "one that answers"
			}
		}
	}
	return e
}

// delete removes keys and says how many were there.
func (db *database) delete(ctx context.Context, keys [][]byte) (int, error) {
	defer db.lock(keys...)()
	return db.deleteLocked(ctx, keys, func(h *head) bool { return true })
}

// deleteLocked deletes those of keys whose head which accepts; it is asked with nil of what cannot be read. Those that
// have expired, or whose pieces are not all there, do not count.
// REQUIRES: the locks of keys.
func (db *database) deleteLocked(ctx context.Context, keys [][]byte, which func(*head) bool) (int, error) {
	if !db.made.Load() {
		return 0, nil
	}
	ctx = skep.Uncounted(ctx) // who deletes asks nothing
	heads, errs := db.stored(ctx, keys, false)
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
			if which(nil) { // it may be on a node that is away, which then is an error
				names = append(names, skep.KeyOf(keys[i]))
			}
			continue
		}
		if !which(h) {
			continue
		}
		names = append(names, skep.KeyOf(keys[i]))
		if h == nil || !h.expired(now) && db.counts(ctx, h) {
			n++
		}
		if h != nil {
			gone = append(gone, h)
		}
	}
	if len(names) == 0 {
		return 0, nil
	}
	_, err := db.store.Delete(ctx, skep.Scope{Namespace: db.heads}, names)
	if err != nil {
		return 0, err
	}
	db.gone(ctx, names)
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
	buried bool // the pieces are being deleted: nobody reads them any more
}

// begin notes that somebody reads the pieces; false: they are being deleted.
func (r *readers) begin(id pieceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.m[id]
	if x == nil {
		x = &reader{}
		r.m[id] = x
	}
	if x.buried {
		return false
	}
	x.n++
	return true
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

// bury is doom of a value whose pieces are deleted next. Somebody may have begun to read them since it was doomed; from
// here on nobody does, until they are gone.
func (r *readers) bury(id pieceID, h *head) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.m[id]; x != nil {
		x.doomed = h
		return false
	}
	r.m[id] = &reader{buried: true}
	return true
}

// gone forgets pieces that were deleted: no lookup finds them.
func (r *readers) gone(id pieceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, id)
}

// letGo ends what begin began.
func (db *database) letGo(id pieceID) {
	if h := db.reading.end(id); h != nil {
		db.reap.pieces(db, h)
	}
}
