package bucket

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skepkv/skep"
)

// deletion says in the bucket that blocks of objects are deleted.
type deletion struct {
	Of map[string][][]byte `json:"of"` // keys, by the object's id
}

// goneKeys are deleted keys, by object.
type goneKeys map[string]map[skep.Key]bool

// listed is what the bucket has of one space.
type listed struct {
	begun     time.Time // when the look began: what was put before is in it
	spec      bool
	objects   map[string]int64 // size by id
	deleted   []string         // names in the space
	announced map[string]bool  // ids
}

// tailBytes is how much of an object's end is fetched at first: most indexes are smaller.
const tailBytes = 64 << 10

// What a look reads.
const (
	indexesAtOnce = 16  // objects' indexes at a time
	mostFailed    = 16  // calls that fail; the rest is left to the next look
	mostRefused   = 256 // calls that the server refuses
)

// refresh brings the index up to what the bucket has. It says whether the bucket can be asked what that is; where it
// cannot be read, or removed, there is an error besides.
func (s *Store) refresh(ctx context.Context) (asked bool, err error) {
	begun := time.Now()
	defer func() { s.looked = time.Now() }()
	s.found.turn(begun)
	for _, sp := range s.all() {
		sp.remember(begun)
	}
	if !s.budget.canList() && s.ready.Load() {
		return true, nil
	}
	of, err := s.list(ctx, "")
	if err != nil {
		return false, err
	}
	for _, sp := range s.all() {
		if of[sp.name] == nil {
			of[sp.name] = newListed(begun)
		}
	}
	var errs []error
	for name, l := range of {
		if err := s.refreshSpace(ctx, name, l); err != nil {
			errs = append(errs, err)
		}
	}
	s.forgetSpaces(of, time.Now())
	s.beside = s.notIndexed(of)
	_, err = s.trim(ctx, 0)
	return true, errors.Join(errors.Join(errs...), err)
}

// list gives what the bucket has of all spaces, or of one.
func (s *Store) list(ctx context.Context, prefix string) (map[string]*listed, error) {
	of, begun := map[string]*listed{}, time.Now()
	err := s.walk(ctx, prefix, func(x Object) {
		space, dir, id, ok := split(x.Name)
		if !ok {
			return
		}
		l := of[space]
		if l == nil {
			l = newListed(begun)
			of[space] = l
		}
		switch dir {
		case specName:
			l.spec = true
		case announcedDir:
			l.announced[id] = true
		case blocksDir:
			l.objects[id] = x.Size
		case deletedDir, unsureDir:
			l.deleted = append(l.deleted, dir+id)
		}
	})
	return of, err
}

func newListed(begun time.Time) *listed {
	return &listed{begun: begun, objects: map[string]int64{}, announced: map[string]bool{}}
}

// namesOfCall is how many names servers list, and remove, in one call.
const namesOfCall = 1000

// walk shows the objects whose names begin with prefix.
func (s *Store) walk(ctx context.Context, prefix string, each func(Object)) error {
	n := 0
	defer func() { s.budget.owe(1+n/namesOfCall, 0, 0) }()
	err := s.asking(ctx, &s.why.reads, func(ctx context.Context, answered func()) error {
		return s.o.Bucket.List(ctx, prefix, func(x Object) error {
			if n++; n%namesOfCall == 0 {
				answered()
			}
			each(x)
			return nil
		})
	})
	if skep.KindOf(err) == skep.Denied { // who may not list it can do nothing with it
		s.why.reads.Store(&err)
	}
	return err
}

// known is the space of that name, which is read where it is not known; nil: nobody says whose it is.
func (s *Store) known(ctx context.Context, name string, l *listed) (*space, error) {
	s.mu.Lock()
	sp := s.spaces[name]
	s.mu.Unlock()
	if sp != nil || !l.spec || l.empty() {
		return sp, nil
	}
	var spec skep.NamespaceSpec
	if err := s.text(ctx, name+specName, &spec); err != nil {
		return nil, err
	}
	if spaceOf(s.o.Key, &spec) != name && (s.o.OtherKey == nil || spaceOf(s.o.OtherKey, &spec) != name) {
		return nil, damaged(name+specName, "space", name, "that of the namespace it names")
	}
	sp = s.spaceNamed(&spec)
	if sp.name != name {
		sp = sp.other
	}
	return sp, nil
}

// mostListed is how often a space is listed in a look while others merge what it lists.
const mostListed = 4

// refreshSpace brings one space up. What cannot be read is left out, and read again at another look.
func (s *Store) refreshSpace(ctx context.Context, name string, l *listed) error {
	for n := 1; ; n++ {
		err := s.takeIn(ctx, name, l)
		if !errors.Is(err, errMoved) || n == mostListed {
			return err
		}
		begun := time.Now()
		of, err := s.list(ctx, name+"/")
		if err != nil {
			return err
		}
		if l = of[name]; l == nil {
			l = newListed(begun)
		}
	}
}

// takeIn is refreshSpace by one listing.
func (s *Store) takeIn(ctx context.Context, name string, l *listed) error {
	sp, err := s.known(ctx, name, l)
	if err != nil {
		return s.unreadable(name+specName, err)
	}
	if sp == nil {
		return nil
	}
	if !l.spec && len(l.objects) > 0 { // it went: nobody else knows whose they are
		sp.named.Store(false)
		if err := s.name(ctx, sp); err != nil {
			s.o.Logger.Warn("a bucket does not say whose objects are", "name", name+specName, "error", err)
		}
	}
	if err := enter(ctx, sp.looking); err != nil {
		return err
	}
	defer func() { <-sp.looking }()
	if sp.owesAll() || !sp.first && s.o.DropOther && l.holds() {
		return s.clear(ctx, sp)
	}
	if l.begun.Before(sp.looked) { // a later look is there already
		return s.pay(ctx, sp)
	}
	whole := false
	defer func() { sp.setComplete(whole) }()
	gone := goneKeys{}
	var useless []string
	for _, of := range l.deleted {
		old, err := s.hear(ctx, sp, of, l, gone)
		switch kind := skep.KindOf(err); {
		case err == nil:
		case kind == skep.Damaged: // nobody knows any more what is deleted
			s.use.damaged.Add(1)
			s.o.Logger.Error("all objects of a namespace are removed", "tenant", sp.spec.Tenant, "namespace", sp.spec.Name,
				"error", err)
			return errors.Join(s.clear(ctx, sp), s.remove(ctx, []string{name + of}))
		case kind == skep.Denied: // nor here, until it can be read: nothing is found
			s.o.Logger.Error("no object of a namespace is read", "tenant", sp.spec.Tenant, "namespace", sp.spec.Name,
				"error", err)
			sp.keepOnly(l)
			sp.unlearn()
			full := s.announced(ctx, sp, l, gone)
			for id := range l.objects {
				full = cmp.Or(full, sp.leave(id, nextLook))
			}
			if full == nil {
				s.withdraw(ctx, sp, sp.settleUnsure(l)...)
			}
			return errors.Join(full, s.pay(ctx, sp))
		case kind == skep.Version: // a newer node says what is deleted: nothing is found until this one can read it
			sp.keepOnly(l)
			sp.unlearn()
			return errors.Join(err, s.pay(ctx, sp))
		default:
			return errors.Join(err, s.pay(ctx, sp))
		}
		if old {
			useless = append(useless, name+of)
		}
	}
	if err := s.announced(ctx, sp, l, gone); err != nil {
		return err
	}
	sp.prune(l)
	sp.keepOnly(l)
	damaged, err := s.adopt(ctx, sp, l, gone)
	s.discard(ctx, damaged)
	if err != nil {
		return errors.Join(err, s.pay(ctx, sp))
	}
	s.withdraw(ctx, sp, sp.settleUnsure(l)...)
	sp.looked, whole = l.begun, true
	spent := slices.DeleteFunc(sp.spent(), func(id string) bool { return l.objects[id] == 0 })
	for _, id := range spent {
		useless = append(useless, name+blocksDir+id)
	}
	if s.discard(ctx, useless) { // else who deletes has to know of them
		for _, id := range spent {
			sp.drop(id)
		}
	}
	if err := s.merge(ctx, sp, l); err != nil {
		s.o.Logger.Warn("what says what is deleted is not merged", "error", err)
	}
	return s.pay(ctx, sp)
}

// discard removes what nobody needs, and says whether it did. Nothing is found of it, and another look tries again.
func (s *Store) discard(ctx context.Context, names []string) bool {
	err := s.remove(ctx, names)
	if err != nil {
		s.o.Logger.Warn("objects that nobody needs stay", "objects", len(names), "error", err)
	}
	return err == nil
}

// adopt reads the indexes of the objects that are new, the newest first, but those last that failed before, and names
// those that are to be removed: nobody can read them. What else cannot be read is left out, and no error unless the
// caller gave it up, or too much is deleted of what is left out.
func (s *Store) adopt(ctx context.Context, sp *space, l *listed, gone goneKeys) (useless []string, err error) {
	var mu sync.Mutex
	failed, refused := 0, 0
	var tooMany error
	left := func(full error) {
		mu.Lock()
		defer mu.Unlock()
		tooMany = cmp.Or(tooMany, full)
	}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return failed >= mostFailed || refused >= mostRefused
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(indexesAtOnce)
	tries := sp.tries()
	order := func(a, b string) int { return cmp.Or(cmp.Compare(tries[a], tries[b]), cmp.Compare(b, a)) }
	for _, id := range slices.SortedFunc(maps.Keys(l.objects), order) {
		full := !s.held.room(memoryOf(1))
		if !sp.toRead(id, full) {
			continue
		}
		switch {
		case full:
			left(sp.leave(id, withRoom))
			continue
		case enough():
			left(sp.leave(id, nextLook))
			continue
		}
		g.Go(func() error {
			name := sp.name + blocksDir + id
			o, records, why := s.indexOf(ctx, sp, id, l.objects[id])
			if why == nil {
				left(sp.adopt(o, records, gone[id], l.begun, time.Now()))
				return nil
			}
			if ctx.Err() != nil {
				return why
			}
			when := nextLook
			mu.Lock()
			switch kind := skep.KindOf(why); kind {
			case skep.NotFound: // it was removed meanwhile, or the server errs: the next look says
			case skep.Damaged:
				useless = append(useless, name)
			case skep.Version:
				when = never
			case skep.Denied:
				when = inVain
				refused++
			default:
				when = inVain
				failed++
			}
			mu.Unlock()
			if s.unreadable(name, why) != nil {
				s.o.Logger.Warn("an object is left out", "name", name, "error", why)
			}
			left(sp.leave(id, when))
			return nil
		})
	}
	if err = g.Wait(); err == nil {
		err = tooMany
	}
	return useless, err
}

// unreadable notes that an object cannot be read. The error stays one where the bucket could not be asked.
func (s *Store) unreadable(name string, err error) error {
	switch skep.KindOf(err) {
	case skep.NotFound:
		return nil // it was removed meanwhile
	case skep.Damaged, skep.Version:
		s.use.damaged.Add(1)
		s.o.Logger.Warn("an object is left out", "name", name, "error", err)
		return nil
	}
	return err
}

// text reads an object of one text.
func (s *Store) text(ctx context.Context, name string, v any) error {
	return s.asked(ctx, &s.why.reads, func(ctx context.Context) error {
		b, err := s.o.Bucket.Get(ctx, name, 0, -1)
		s.budget.owe(0, 1, int64(len(b)))
		if err != nil {
			return err
		}
		return openText(s.keys(), name, b, v)
	})
}

// hear takes out what a deletion names, by its name in the space. It is useless once a look that began after it was
// there has none of its objects, nor can they come any more.
func (s *Store) hear(ctx context.Context, sp *space, of string, l *listed, gone goneKeys) (useless bool, err error) {
	name := sp.name + of
	sp.mu.RLock()
	h := sp.heard[of]
	sp.mu.RUnlock()
	d := h.deletion
	if d == nil {
		d = &deletion{}
		if err := s.text(ctx, name, d); err != nil {
			if skep.KindOf(err) == skep.NotFound {
				return false, errMoved
			}
			return false, err
		}
	}
	useless = h.deletion != nil && h.at.Before(l.begun)
	if strings.HasPrefix(of, unsureDir) {
		useless = h.deletion != nil && l.begun.Sub(h.at) > saidFor
	}
	for of, keys := range d.Of {
		if _, there := l.objects[of]; !there && !l.announced[of] {
			continue
		}
		useless = false
		if gone[of] == nil {
			gone[of] = map[skep.Key]bool{}
		}
		for _, k := range keys {
			if key, err := skep.ParseKey(k); err == nil {
				gone[of][key] = true
			}
		}
	}
	sp.hear(of, d, useless)
	return useless, nil
}

// indexOf reads an object's index.
func (s *Store) indexOf(ctx context.Context, sp *space, id string, size int64) (*object, []record, error) {
	name := sp.name + blocksDir + id
	if size < int64(trailerSize) {
		return nil, nil, damaged(name, "size", size, trailerSize)
	}
	var o *object
	var records []record
	err := s.asked(ctx, &s.why.reads, func(ctx context.Context) error {
		from := max(0, size-tailBytes)
		b, err := s.o.Bucket.Get(ctx, name, from, size-from)
		s.budget.owe(0, 1, int64(len(b)))
		if err != nil {
			return err
		}
		if len(b) < trailerSize || int64(len(b)) != size-from {
			return damaged(name, "size", len(b), size-from)
		}
		t, err := readTrailer(sp.key, name, size, b[len(b)-trailerSize:])
		if err != nil {
			return err
		}
		if t.at < from {
			b, err = s.o.Bucket.Get(ctx, name, t.at, t.size)
			s.budget.owe(0, 1, int64(len(b)))
			if err != nil {
				return err
			}
			if int64(len(b)) != t.size {
				return damaged(name, "size of the index", len(b), t.size)
			}
		} else {
			b = b[t.at-from : t.at-from+t.size]
		}
		o = newObject(sp, id, size, t.salt)
		records, err = readIndex(newSealer(sp.key, name, t.salt), name, t.at, b)
		return err
	})
	return o, records, err
}

// notIndexed is how many bytes there are of objects that the index does not have, those of no known key among them.
func (s *Store) notIndexed(of map[string]*listed) (n int64) {
	known := map[string]*space{}
	for _, sp := range s.all() {
		known[sp.name] = sp
	}
	for name, l := range of {
		for id, size := range l.objects {
			if sp := known[name]; sp == nil || sp.lacks(id) {
				n += size
			}
		}
	}
	return n
}

// trim removes the objects that were used least lately where there are more bytes than may be. Where room for more is
// asked for, none goes that was used within stay: what is on the drives would come and go for ever. It says whether
// there is room. What the index does not have takes some, and is not removed for that.
func (s *Store) trim(ctx context.Context, more int64) (bool, error) {
	if s.o.MaxBytes == 0 {
		return true, nil
	}
	type one struct {
		sp   *space
		o    *object
		used int64
	}
	var list []one
	total := more
	if more > 0 {
		if total += s.beside; total > s.o.MaxBytes {
			return false, nil
		}
	}
	for _, sp := range s.all() {
		sp.mu.RLock()
		for _, o := range sp.objects {
			list = append(list, one{sp, o, o.used.Load()})
			total += o.size
		}
		sp.mu.RUnlock()
		_, doubtful := sp.inDoubt()
		total += doubtful
	}
	slices.SortFunc(list, func(a, b one) int { return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.o.id, b.o.id)) })
	var names []string
	for _, x := range list {
		if total <= s.o.MaxBytes || more > 0 && time.Since(time.UnixMilli(x.used)) < s.stay {
			break
		}
		total -= x.o.size
		names = append(names, x.sp.name+blocksDir+x.o.id)
	}
	if err := s.remove(ctx, names); err != nil { // who deletes has to know of what may be there yet
		return false, err
	}
	for _, x := range list[:len(names)] {
		x.sp.drop(x.o.id)
	}
	return total <= s.o.MaxBytes, nil
}

// remove removes objects.
func (s *Store) remove(ctx context.Context, names []string) error {
	for some := range slices.Chunk(names, namesOfCall) {
		call := func(ctx context.Context) error { return s.o.Bucket.Delete(ctx, some) }
		if err := s.asked(ctx, &s.why.writes, call); err != nil {
			return err
		}
	}
	return nil
}
