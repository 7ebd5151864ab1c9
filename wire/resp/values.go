package resp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// Values are the values of one database, for a program that has a Store and no Redis client: what it puts a GET finds,
// and the other way round. The Store may be another process's, by package wire.
//
// The locks of keys are a server's own. Where the same key is written by a server's clients at the same moment, one of
// both values is there afterwards, or none, and never a mixture.
type Values struct {
	s      *Server
	tenant *tenant
	number int
}

// NewValues gives the values of a tenant's database. Close must be called; the Store stays open.
//
// Errors: Invalid (there is no database of that number).
func NewValues(st skep.Store, tenant string, number int) (*Values, error) {
	if number < 0 || number >= databases {
		return nil, skep.Invalidf("values", "database", number, fmt.Sprintf("0 to %d", databases-1))
	}
	nobody, err := auth.New(nil, nil, nil)
	if err != nil {
		return nil, err
	}
	s, err := New(st, Options{Auth: nobody})
	if err != nil {
		return nil, err
	}
	s.o.Copies = 0 // the Store's server decides
	return &Values{s, s.tenantOf(tenant), number}, nil
}

// Close deletes what was put in part or replaced.
func (v *Values) Close() error { return v.s.Shutdown(context.Background()) }

// DatabaseOf is the number in the name of a database's namespace of heads; false: it is none's.
func DatabaseOf(namespace string) (int, bool) {
	text, ok := strings.CutPrefix(namespace, spacePrefix)
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && n >= 0 && n < databases && headsName(n) == namespace
}

// IsDatabase says whether a namespace of that name is one of a database's two.
func IsDatabase(namespace string) bool {
	_, ok := DatabaseOf(strings.TrimSuffix(namespace, dataSuffix))
	return ok
}

// NamespacesOf are the names of a database's two namespaces.
func NamespacesOf(database int) []string { return []string{headsName(database), dataName(database)} }

func checkKey(op string, key []byte) error {
	if len(key) > MaxKeyBytes {
		return skep.Invalidf(op, "key length in bytes", len(key), fmt.Sprintf("at most %d", MaxKeyBytes))
	}
	return nil
}

func (v *Values) database(ctx context.Context, open func(*database, context.Context) error) (*database, error) {
	return v.s.opened(ctx, v.s.database(v.tenant, v.number), open)
}

// putAhead is how many pieces of a value are on their way to the Store at once.
const putAhead = 4

// settle is how long the end of a put may take whose caller has gone: its value is there or is not.
const settle = 10 * time.Second

// Put stores what r gives under a key, in place of what was there, and says how many bytes that was. It holds a few
// MiB of it at a time. The value appears when all of it is stored: where r, ctx or the Store ends earlier,
// nothing has changed.
//
// Errors: Invalid (the key or the value is too long), those of r, Overloaded (part of it was purged or evicted
// meanwhile), and those of skep.Putter, a block that it declined among them.
func (v *Values) Put(ctx context.Context, key []byte, r io.Reader) (int64, error) {
	const op = "put"
	if err := checkKey(op, key); err != nil {
		return 0, err
	}
	db, err := v.database(ctx, (*database).make)
	if err != nil {
		return 0, err
	}
	x := &value{inline: make([]byte, inlineBytes+1)}
	n, err := io.ReadFull(r, x.inline)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		x.inline, x.size = x.inline[:n], int64(n)
	case err != nil:
		return 0, err
	default:
		r = io.MultiReader(bytes.NewReader(x.inline), r)
		x.inline, x.id, x.piece = nil, ids(), pieceBytes
		x.err = v.putPieces(ctx, db, x, r)
	}
	if x.err == nil {
		x.err = ctx.Err()
	}
	set := &setOp{key: key, value: x}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
	defer cancel()
	db.set(ctx, []*setOp{set})
	var later *tryAgain
	if errors.As(set.err, &later) {
		set.err = &skep.Error{Op: op, Kind: skep.Overloaded, RetryAfter: later.after, Err: errors.New(later.why)}
	}
	return x.size, set.err
}

// putPieces stores a value's pieces as they come. Its size is known afterwards, and however far it came: what is
// stored then is of these pieces.
func (v *Values) putPieces(ctx context.Context, db *database, x *value, r io.Reader) error {
	f := &flight{}
	places := make(chan struct{}, putAhead)
	for i, more := 0, true; more; i++ {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			f.fail(ctx.Err())
		}
		f.mu.Lock()
		failed := f.err != nil
		f.mu.Unlock()
		if failed {
			break
		}
		mem, err := v.s.store.Alloc(ctx, pieceBytes)
		if err != nil {
			f.fail(err)
			break
		}
		n, err := io.ReadFull(r, mem.Bytes()[:pieceBytes])
		more = err == nil
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			f.fail(err)
			n = 0
		}
		if x.size += int64(n); x.size > MaxValueBytes {
			f.fail(skep.Invalidf("put", "value length in bytes", fmt.Sprintf("over %d", MaxValueBytes), fmt.Sprintf("at most %d", MaxValueBytes)))
			x.size, n, more = x.size-int64(n), 0, false
		}
		if n == 0 {
			mem.Release()
			break
		}
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			defer func() { <-places }()
			f.put(ctx, db, skep.Block{Key: x.id.key(i), Parts: []skep.Part{{Bytes: mem.Bytes()[:n]}}}, sync.OnceFunc(mem.Release))
		}()
	}
	return f.wait()
}

// put stores one piece, whose memory release gives back.
func (f *flight) put(ctx context.Context, db *database, b skep.Block, release func()) {
	results, err := db.store.Put(ctx, &skep.PutRequest{Scope: skep.Scope{Namespace: db.data}, Released: release, Blocks: []skep.Block{b}})
	err, held := skep.Held(err)
	if !held { // else somebody reads it yet
		release()
	}
	if err == nil && results[0].Outcome == skep.Declined {
		err = db.declined("put", db.data, b.Key, results[0].Reason)
	}
	if err != nil {
		f.fail(err)
	}
}

// getAhead is how many pieces of a value are on their way from the Store at once.
const getAhead = 16

// Get writes a key's value to where begin says, which is told its size, and holds a few MiB of it at a time. Each
// piece is checked before any of it is written; an error after begin was called can leave the value written in part.
//
// Errors: NotFound (there is no such key, or its value is not whole), those of begin and of what it gave, and those of
// skep.Restorer.
func (v *Values) Get(ctx context.Context, key []byte, begin func(size int64) (io.Writer, error)) error {
	const op = "get"
	if err := checkKey(op, key); err != nil {
		return err
	}
	db, err := v.database(ctx, (*database).find)
	if err != nil {
		return err
	}
	h, lease, err := db.leased(ctx, key)
	if err != nil {
		return err
	}
	if h.piece != 0 {
		defer db.letGo(h.id)
	}
	if lease != 0 {
		defer func() { _ = db.store.Release(context.WithoutCancel(ctx), lease) }() // it ends by itself
	}
	w, err := begin(h.size)
	if err != nil {
		return err
	}
	if h.piece == 0 {
		_, err := w.Write(h.inline)
		return err
	}
	for from := 0; from < h.pieces(); from += getAhead {
		if from > 0 && lease != 0 {
			// What is leased no more may be there all the same.
			if _, err := db.store.Renew(ctx, lease, time.Minute); err != nil && skep.KindOf(err) != skep.LeaseExpired {
				return err
			}
		}
		if err := db.write(ctx, w, h, from, min(from+getAhead, h.pieces())); err != nil {
			return err
		}
	}
	return nil
}

// leased finds a key whose value is there, leases its pieces for a minute, and notes that they are read, which the
// caller ends (letGo). A value that is replaced meanwhile is looked for again.
func (db *database) leased(ctx context.Context, key []byte) (*head, skep.LeaseID, error) {
	for try := 0; ; try++ {
		heads, errs := db.headsOf(ctx, [][]byte{key}, true)
		if errs[0] != nil {
			if absent(errs[0]) {
				return nil, 0, errNone
			}
			return nil, 0, errs[0]
		}
		h := heads[0]
		if h.piece == 0 {
			return h, 0, nil
		}
		if db.reading.begin(h.id) {
			found, err := db.store.Lookup(skep.Continued(ctx), &skep.LookupRequest{Scope: skep.Scope{Namespace: db.data},
				Keys: h.pieceKeys(0, h.pieces()), Lease: time.Minute})
			if err == nil && found.Blocks == h.pieces() {
				return h, found.Lease.ID, nil
			}
			db.letGo(h.id)
			if err != nil {
				return nil, 0, err
			}
			_ = db.store.Release(ctx, found.Lease.ID) // it ends by itself
		}
		if try == 2 {
			return nil, 0, errNone
		}
		ctx = skep.Uncounted(ctx) // the key was asked for
	}
}

// write writes pieces [from, to) of a value.
func (db *database) write(ctx context.Context, w io.Writer, h *head, from, to int) error {
	ses, err := db.store.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: skep.Scope{Namespace: db.data}, Keys: h.pieceKeys(from, to)}}})
	if err != nil {
		return err
	}
	sp := &span{ses: ses, slots: make([]skep.Chunk, to-from), landed: make([]bool, to-from)}
	defer func() {
		for i := range sp.slots {
			sp.slots[i].Release()
		}
		closeSession(ses)
	}()
	for i := range sp.slots {
		ch, err := sp.next(ctx, i)
		if size := h.pieceSize(from + i); err == nil && ch.Bytes != size {
			err = &skep.Error{Op: "get", Kind: skep.Damaged, Field: "piece size", Value: ch.Bytes, Limit: size}
		}
		if err != nil {
			return err
		}
		for _, b := range ch.Data {
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		ch.Release()
	}
	return nil
}

// Delete removes keys and says how many were there.
//
// Errors: those of skep.Deleter.
func (v *Values) Delete(ctx context.Context, keys [][]byte) (int, error) {
	for _, k := range keys {
		if err := checkKey("delete", k); err != nil {
			return 0, err
		}
	}
	db, err := v.database(ctx, (*database).find)
	if err != nil || !db.made.Load() {
		return 0, err
	}
	return db.delete(ctx, keys)
}

// Entry is one key as a listing tells of it.
type Entry struct {
	Key     []byte
	Bytes   int64     // of the value
	Expires time.Time // zero: it does not
}

// List calls f for each key that begins with prefix, in no order, until f says false. Keys are among them whose value
// was evicted. One that is written meanwhile may come twice.
//
// Errors: those of skep.Lister and skep.Restorer.
func (v *Values) List(ctx context.Context, prefix []byte, f func(Entry) bool) error {
	db, err := v.database(ctx, (*database).find)
	if err != nil || !db.made.Load() {
		return err
	}
	for from, more := uint64(0), true; more; {
		names, next, err := db.store.ListKeys(ctx, db.heads, from, scanStep)
		if err != nil {
			return err
		}
		now := db.clock()
		if len(names) > 0 {
			if err := eachBlock(ctx, db.store, db.heads, names, func(_ int, b []byte, err error) {
				if err != nil || !more { // gone since, or enough
					return
				}
				h, err := decodeHead(b)
				if err != nil || h.expired(now) || !bytes.HasPrefix(h.key, prefix) {
					return
				}
				e := Entry{Key: bytes.Clone(h.key), Bytes: h.size}
				if h.expiry != 0 {
					e.Expires = time.UnixMilli(h.expiry)
				}
				more = f(e)
			}); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		from = next
		more = more && next != 0
	}
	return nil
}
