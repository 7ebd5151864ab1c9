package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
)

// Catalog is an open catalog. All methods may be called from any goroutine.
type Catalog struct {
	*guard
	db       *pebble.DB
	dir      string
	readOnly bool
	created  bool
	commits  chan struct{}
	rootMu   locks.Mutex[locks.CatalogRoot]
	rootDone <-chan struct{} // closed when the last commit of a root row is through; guarded by rootMu

	fs     vfs.FS                // as Pebble has it
	tables sstable.WriterOptions // of tables written outside Pebble
	loads  atomic.Int64          // how many of them

	releaseMu locks.Mutex[locks.CatalogRelease]
	release   []io.Closer // after db, in order
	released  bool        // nothing is kept any more: an open that was given up may still be under way
}

// maxCommits bounds the commits in flight, also those whose caller has left
// because the drive does not answer.
const maxCommits = 128

// Open opens the catalog in dir, or creates it unless o.MustExist or o.ReadOnly.
//
// Errors: skep.NotFound when it must exist and does not, skep.Conflict when it must not
// and does, skep.Locked when another process, or this one, has it open, skep.Version
// when it is of another format, skep.Damaged, skep.Deadline after
// o.OpenTimeout, skep.Failed when its filesystem cannot be written: then, as after
// any failure, some goroutines and memory stay behind.
func Open(dir string, o Options) (*Catalog, error) {
	o.ensureDefaults()
	return openWithin(dir, &o, func(c *Catalog) error { return c.open(&o) })
}

// openWithin runs open within o.OpenTimeout. When that passes, or Pebble's Open waits
// for a goroutine that is parked, what was begun is abandoned.
func openWithin(dir string, o *Options, open func(c *Catalog) error) (*Catalog, error) {
	const op = "open catalog"
	c := &Catalog{guard: newGuard(o), dir: dir, readOnly: o.ReadOnly, commits: make(chan struct{}, maxCommits)}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				c.fail(fmt.Errorf("pebble panicked: %v", r))
			}
		}()
		done <- translate(op, open(c))
	}()
	timer := time.NewTimer(o.OpenTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			return nil, errors.Join(err, c.releaseAll())
		}
		c.opened.Store(true)
		if c.isFailed() { // perhaps too early for OnFailure
			return nil, c.abandon(op)
		}
		return c, nil
	case <-c.failed:
		return nil, c.abandon(op)
	case <-timer.C:
		err := &skep.Error{Op: op, Kind: skep.Deadline, Field: "directory", Value: dir, Limit: "open within " + o.OpenTimeout.String()}
		c.fail(err)
		_ = c.abandon(op)
		return nil, err
	}
}

func (c *Catalog) open(o *Options) error {
	mustExist := o.MustExist || o.ReadOnly
	if _, err := o.FS.Stat(c.dir); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if mustExist {
			return notFound(c.dir, err)
		}
		if err := o.FS.MkdirAll(c.dir, 0o755); err != nil {
			return err
		}
		if err := syncDir(o.FS, o.FS.PathDir(c.dir)); err != nil { // or a crash takes all of it
			return err
		}
	}
	watched, watcher := vfs.WithDiskHealthChecks(o.FS, slowDisk, nil, func(i vfs.DiskSlowInfo) { c.listener().DiskSlow(i) })
	fenced := &fence{FS: watched, g: c.guard}
	lock, err := o.FS.Lock(o.FS.PathJoin(c.dir, "LOCK"))
	if err != nil {
		_ = watcher.Close()
		return lockError(o.FS, c.dir, err)
	}
	c.spares.fs, c.spares.dir = o.FS, c.dir
	if !c.hold(watcher, lock, &c.spares) {
		return c.failure("open catalog")
	}

	exists, err := examine(o.FS, c.dir)
	switch {
	case err != nil:
		return err
	case !exists && mustExist:
		return notFound(c.dir, nil)
	case exists && o.MustNotExist:
		return &skep.Error{Op: "create catalog", Kind: skep.Conflict, Field: "directory", Value: c.dir, Limit: "without a catalog"}
	}
	c.created = !exists
	if exists && !o.ReadOnly {
		if err := c.refuseOtherFormat(fenced, o); err != nil {
			return err
		}
	}
	if err := c.spares.fill(); err != nil { // before Pebble, which would have to be closed
		return err
	}
	return c.openPebble(fenced, o)
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// refuseOtherFormat refuses a catalog of another format before it is opened for writing: that raises Pebble's own format
// and makes log and manifest anew, and the program that wrote the catalog might not open it any more. What else is
// wrong is not said here.
func (c *Catalog) refuseOtherFormat(fsys vfs.FS, o *Options) error {
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	p := pebbleOptions(o, cache)
	p.FS, p.Logger, p.ReadOnly = fsys, pebbleLogger{c.guard}, true
	db, err := pebble.Open(c.dir, p)
	if err != nil {
		return nil
	}
	var s StoreState
	_, err = get(db, []byte{rowStore}, s.decode)
	if e := db.Close(); skep.KindOf(err) == skep.Version {
		return errors.Join(err, e)
	}
	return nil
}

func (c *Catalog) openPebble(fsys vfs.FS, o *Options) (err error) {
	// Pebble takes memtables out of the cache's account.
	cache := pebble.NewCache(o.CacheBytes + int64(memtablesQueue)*int64(o.memtableBytes))
	defer cache.Unref() // the DB holds it
	p := pebbleOptions(o, cache)
	p.FS = fsys
	p.Logger, p.EventListener = pebbleLogger{c.guard}, c.listener()
	p.EnsureDefaults()
	c.fs, c.tables = fsys, p.MakeWriterOptions(0, p.FormatMajorVersion.MaxTableFormat())
	if c.db, err = pebble.Open(c.dir, p); err != nil {
		return namesOptions(err, fsys, c.dir, p)
	}
	var s StoreState
	if _, err := get(c.db, []byte{rowStore}, s.decode); err != nil {
		return errors.Join(err, c.db.Close())
	}
	return nil
}

// namesOptions gives an open's error a kind when it is the newest OPTIONS file that Pebble refuses. Every
// catalog of this format has the same, so what it says otherwise is damage: Damaged. Version where the
// MANIFEST, which has checksums, names the same other order of keys: then it is as it was written.
func namesOptions(err error, fsys vfs.FS, dir string, p *pebble.Options) error {
	d, e := pebble.Peek(dir, fsys)
	if e != nil || d.OptionsFilename == "" {
		return err
	}
	text, e := readFile(fsys, d.OptionsFilename)
	if e != nil || p.CheckCompatibility(dir, string(text)) == nil {
		return err
	}
	e = &skep.Error{Op: "open", Kind: skep.Damaged, Field: "catalog's " + fsys.PathBase(d.OptionsFilename), Err: err}
	other := comparerOf(string(text))
	if other == "" || other == p.Comparer.Name {
		return e
	}
	names, failed := readFile(fsys, d.ManifestFilename)
	if failed == nil && bytes.Contains(names, []byte(other)) && !bytes.Contains(names, []byte(p.Comparer.Name)) {
		return &skep.Error{Op: "open", Kind: skep.Version, Field: "catalog's order of keys", Value: other,
			Limit: p.Comparer.Name, Err: err}
	}
	return e
}

// comparerOf is the order of keys that an OPTIONS file names.
func comparerOf(options string) string {
	for line := range strings.Lines(options) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "comparer="); ok {
			return name
		}
	}
	return ""
}

func readFile(fsys vfs.FS, name string) (b []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	b, err = io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

func notFound(dir string, err error) error {
	return &skep.Error{Op: "open catalog", Kind: skep.NotFound, Field: "directory", Value: dir, Limit: "an existing catalog", Err: err}
}

// examine says whether dir holds a catalog, and refuses one in a newer format. One
// whose creation was cut short by a crash is none: Pebble writes the format marker
// last, before its first open returns, so without one nothing was ever committed,
// and creating goes over it.
func examine(fsys vfs.FS, dir string) (exists bool, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		version, ok := strings.CutPrefix(name, "marker.format-version.")
		if !ok {
			continue
		}
		exists = true
		v, err := strconv.ParseUint(version[strings.LastIndexByte(version, '.')+1:], 10, 64)
		if err == nil && v > uint64(pebble.FormatNewest) {
			return true, &skep.Error{Op: "open catalog", Kind: skep.Version, Field: "pebble format", Value: v,
				Limit: fmt.Sprintf("at most %d", uint64(pebble.FormatNewest))}
		}
	}
	return exists, nil
}

// Created says whether Open made the catalog. Until the first PutStore is committed
// it is empty.
func (c *Catalog) Created() bool { return c.created }

// Err is the error every call returns since the catalog failed, nil before.
func (c *Catalog) Err() error {
	if c.isFailed() {
		return c.failure("catalog")
	}
	return nil
}

// Leave says that Close follows as soon as the calls under way are over: a call that waits for a file system that is for
// reading fails the catalog soon.
func (c *Catalog) Leave() { c.left.Do(func() { close(c.leaving) }) }

// Close waits for calls under way and closes, within three timeouts. A catalog that
// has failed, or does not close in time, is skep.Failed: its goroutines and memory
// stay until the process ends. Its lock is given back, and it can be opened again, unless
// the drive still owes an answer to a write. Closing twice is not an error.
func (c *Catalog) Close() error {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return nil
	}
	c.mu.closed = true
	c.mu.Unlock()
	c.Leave()
	close(c.closing)
	if c.isFailed() {
		return c.abandon("close catalog")
	}
	if !c.within(c.inFlight.Wait) {
		c.fail(fmt.Errorf("calls still inside pebble %v after close", c.timeout))
		return c.abandon("close catalog")
	}
	var err error
	if !c.within(func() { err = errors.Join(c.db.Close(), c.releaseAll()) }) {
		c.fail(fmt.Errorf("pebble did not close within %v", c.timeout))
		return c.abandon("close catalog")
	}
	return translate("close catalog", err)
}

// within runs f on a goroutine and waits for it; false when it takes longer than
// the timeout or the catalog fails meanwhile.
func (c *Catalog) within(f func()) bool {
	done := make(chan struct{})
	go func() {
		defer func() {
			if r := recover(); r != nil {
				c.fail(fmt.Errorf("pebble panicked: %v", r))
				return
			}
			close(done)
		}()
		f()
	}()
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-c.failed:
	}
	return false
}

// abandon gives up a failed catalog: Pebble is not touched, and the lock is given
// back once nothing can write any more.
func (c *Catalog) abandon(op string) error {
	locked := !c.quiet()
	if !locked {
		c.releaseMu.Lock()
		c.released = true
		c.releaseMu.Unlock()
		_ = c.releaseAll()
	}
	c.log.Warn("failed catalog left as it is: its goroutines and memory stay until the process ends", "dir", c.dir, "still_locked", locked)
	return c.failure(op)
}

// hold keeps what is to be closed after Pebble. False: the open this is part of was given
// up before, and it is closed now, or nobody would ever give the lock back.
func (c *Catalog) hold(r ...io.Closer) bool {
	c.releaseMu.Lock()
	defer c.releaseMu.Unlock()
	if c.released {
		for _, o := range r {
			_ = o.Close()
		}
		return false
	}
	c.release = append(c.release, r...)
	return true
}

func (c *Catalog) releaseAll() error {
	c.releaseMu.Lock()
	defer c.releaseMu.Unlock()
	var errs []error
	for _, r := range c.release {
		errs = append(errs, r.Close())
	}
	c.release = nil
	return errors.Join(errs...)
}
