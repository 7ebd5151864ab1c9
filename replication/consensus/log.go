package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
)

// Rows of the database: the log's entries by index, big endian, and raft's and this package's own values by name.
const (
	rowEntry = 'l'
	rowValue = 's'
)

// What the database needs of memory and files, whatever it has in it.
const (
	cacheBytes    = 1 << 20
	memtableBytes = 1 << 20
	openFiles     = 64
)

// patience is how long Pebble may take for one call before it counts as failed. It is counted in so many parts: for how
// long ever a process is stopped, that is one of them when it goes on, and so do its calls.
const (
	patience      = 30 * time.Second
	patienceParts = 30
)

// errNoValue is what raft expects of a value that is not there: it compares the text.
var errNoValue = errors.New("not found")

// logs is raft's log and its stable values, in Pebble. What a method has answered to is on the drive.
//
// Where Pebble fails, so does logs, for good. Calls of Pebble run on goroutines of their own, so that a caller is answered
// when Pebble never comes back: it panics or stops where it cannot write.
type logs struct {
	fs     vfs.FS
	dir    string
	log    *slog.Logger
	short  atomic.Bool                   // it was told that there is too little space
	full   atomic.Pointer[skep.Error]    // what was seen last of space; nil: there is enough
	wanted atomic.Uint64                 // size of the largest entries that found no space; 0: there is enough
	look   atomic.Pointer[chan struct{}] // of who only looks now: closed when the file system has said it
	cut    atomic.Bool                   // entries were cut from the end, and what replaces them is not appended yet
	db     *pebble.DB
	failed chan struct{} // closed once
	once   sync.Once
	cause  error // valid once failed is closed

	// ends has a goroutine that asks in vain end, rather than be answered: raft panics where its values cannot be kept or
	// its entries read. It is set once raft runs, whose goroutines take that well.
	ends atomic.Bool

	// older is the last entry of the snapshot before the newest one: what is after it stays, so that it can be used
	// where the newest cannot be read. Nil: there are none.
	older func() uint64
}

// openLogs opens the database in dir, or makes it.
func openLogs(fsys vfs.FS, dir string, log *slog.Logger) (*logs, error) {
	return openLogsFor(fsys, dir, log, false)
}

// openLogsFor opens it; who only looks changes nothing, and makes none.
func openLogsFor(fsys vfs.FS, dir string, log *slog.Logger, looking bool) (*logs, error) {
	s := &logs{fs: fsys, dir: dir, log: log, failed: make(chan struct{})}
	err := s.guarded(func() (err error) {
		if !looking {
			err = makeDir(fsys, dir)
		}
		if err != nil {
			return err
		}
		cache := pebble.NewCache(cacheBytes)
		defer cache.Unref() // the database holds it
		f := &shield{FS: fsys, s: s}
		s.db, err = pebble.Open(dir, &pebble.Options{
			FS: f, Cache: cache, FormatMajorVersion: pebble.FormatTableFormatV6, MemTableSize: memtableBytes,
			MemTableStopWritesThreshold: 2, L0StopWritesThreshold: 24, MaxOpenFiles: openFiles, Logger: pebbleLogger{s, log},
			ReadOnly: looking,
		})
		f.open.Store(err == nil)
		return err
	})
	if err != nil {
		return nil, &skep.Error{Op: "open raft's log", Kind: kindOfOpen(err), Field: "directory", Value: dir, Err: err}
	}
	return s, nil
}

// makeDir makes a directory, and those above it, so that a crash leaves them there.
func makeDir(fsys vfs.FS, dir string) error {
	if _, err := fsys.Stat(dir); err == nil {
		return nil
	}
	above := fsys.PathDir(dir)
	if above != dir {
		if err := makeDir(fsys, above); err != nil {
			return err
		}
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	d, err := fsys.OpenDir(above)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func kindOfOpen(err error) skep.Kind {
	if errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "current process") {
		return skep.Locked
	}
	if pebble.IsCorruptionError(err) {
		return skep.Damaged
	}
	return skep.Failed
}

// pebbleLogger has Pebble's end be that of logs.
type pebbleLogger struct {
	s   *logs
	log *slog.Logger
}

func (l pebbleLogger) Infof(format string, args ...any) { l.log.Debug(fmt.Sprintf(format, args...)) }

func (l pebbleLogger) Errorf(format string, args ...any) { l.log.Warn(fmt.Sprintf(format, args...)) }

// fatal is an error that Pebble has told as text.
type fatal struct {
	text  string
	cause error
}

func (f fatal) Error() string { return f.text }

func (f fatal) Unwrap() error { return f.cause }

// Fatalf does not return: Pebble expects the process to be gone, and has its locks held.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := fatal{text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if e, ok := a.(error); ok {
			err.cause = e
		}
	}
	l.log.Error("raft's log failed", "error", err)
	l.s.fail(err)
	select {}
}

func (s *logs) fail(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.failed)
	})
}

func (s *logs) failure() error {
	e := &skep.Error{Op: "raft's log", Kind: skep.Failed, Field: "directory", Value: s.dir, Err: s.cause}
	if !s.ends.Load() && pebble.IsCorruptionError(s.cause) { // it is being opened, or looked at
		e.Kind = skep.Damaged
	}
	if vfs.IsNoSpaceError(s.cause) {
		e.Limit = "one with space: make some, and start the server again"
	}
	return e
}

// leastSpace is what the file system has to have free for entries to be taken. Pebble cannot go on where it finds no
// space; what it writes besides entries fits into that, and so do votes and terms.
const leastSpace = 16 << 20

// spaceToCut is the same for entries to be cut from the end: what replaces them fits, too.
const spaceToCut = leastSpace + 4<<20

// space is Full where there is less of it than so many bytes. Where the file system does not answer, the log has
// failed.
func (s *logs) space(least uint64) error {
	var full error
	if err := s.guarded(func() error { full = s.shortOf(least); return nil }); err != nil {
		return err // f may be writing full yet
	}
	return full
}

// seen is what space would say, for who only looks: where the file system does not answer soon, it is what was seen
// last. The log does not fail for it. Who comes while somebody looks waits for what that one sees.
func (s *logs) seen() error {
	said := make(chan struct{})
	if was := s.look.Load(); was != nil {
		said = *was
	} else if s.look.CompareAndSwap(nil, &said) {
		go func() {
			defer close(said)
			defer s.look.Store(nil)
			_ = s.shortOf(leastSpace)
		}()
	} else {
		return s.seen() // somebody began just now
	}
	soon := time.NewTimer(lookPatience)
	defer soon.Stop()
	select {
	case <-said:
	case <-soon.C:
	case <-s.failed:
	}
	if e := s.full.Load(); e != nil {
		return e
	}
	return nil
}

// lookPatience is how long who only looks waits for the file system.
const lookPatience = 100 * time.Millisecond

// shortOf asks the file system. Where it does not say, there is enough. What is seen later is whether entries are
// taken, also those that were not, whatever the caller needs.
func (s *logs) shortOf(least uint64) error {
	u, err := s.fs.GetDiskUsage(s.dir)
	below := func(least uint64) *skep.Error {
		if err != nil || u.AvailBytes >= least {
			return nil
		}
		return &skep.Error{Op: "raft's log", Kind: skep.Full, Field: "space in " + s.dir, Value: u.AvailBytes,
			Limit: fmt.Sprintf("at least %d bytes free for it", least)}
	}
	wanted := s.wanted.Load()
	full := below(leastSpace + wanted)
	if s.full.Store(full); full == nil {
		s.wanted.CompareAndSwap(wanted, 0)
	}
	short := full != nil
	if was := s.short.Swap(short); short && !was {
		s.log.Error("no space for raft's log", "error", full)
	} else if was && !short {
		s.log.Info("raft's log has space again", "directory", s.dir)
	}
	if full := below(least); full != nil {
		return full
	}
	return nil
}

// guarded runs f, and gives it up where Pebble fails.
func (s *logs) guarded(f func() error) error {
	select {
	case <-s.failed:
		return s.failure()
	default:
	}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				s.fail(fmt.Errorf("pebble panicked: %v", r))
			}
		}()
		done <- f()
	}()
	late := time.NewTicker(patience / patienceParts)
	defer late.Stop()
	return s.await(done, late.C)
}

// await waits for what done says, and fails the log after patienceParts of late.
func (s *logs) await(done <-chan error, late <-chan time.Time) error {
	for range patienceParts {
		select {
		case err := <-done:
			return err
		case <-late:
		case <-s.failed:
			return s.failure()
		}
	}
	select {
	case err := <-done:
		return err
	default:
		s.fail(fmt.Errorf("no answer within %v", patience))
	}
	return s.failure()
}

// call is guarded, and an error of f is a failure. hard says that raft panics where it gets one.
func (s *logs) call(hard bool, f func() error) error {
	err := s.guarded(f)
	if err == nil {
		return nil
	}
	s.fail(err)
	if hard && s.ends.Load() {
		runtime.Goexit()
	}
	return s.failure()
}

// Close closes the database. One that has failed stays as it is, with its goroutines, until the process ends.
func (s *logs) Close() error {
	select {
	case <-s.failed:
		return s.failure()
	default:
		return s.guarded(s.db.Close)
	}
}

func entryKey(index uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{rowEntry}, index)
}

func valueKey(name []byte) []byte { return append([]byte{rowValue}, name...) }

// An entry is a version, its type, its term, the time it was appended at in nanoseconds of Unix, the size of its data,
// data, extensions.
const (
	entryVersion = 1
	entryHeader  = 1 + 1 + 8 + 8 + 4
)

func encodeEntry(l *raft.Log) ([]byte, error) {
	if uint64(len(l.Data)) > math.MaxUint32 {
		return nil, skep.Invalidf("raft's log", "data of an entry in bytes", len(l.Data), uint32(math.MaxUint32))
	}
	at := int64(0)
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b := make([]byte, 0, entryHeader+len(l.Data)+len(l.Extensions))
	b = append(b, entryVersion, byte(l.Type))
	b = binary.LittleEndian.AppendUint64(b, l.Term)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(l.Data)))
	return append(append(b, l.Data...), l.Extensions...), nil
}

func decodeEntry(index uint64, b []byte) (raft.Log, error) {
	const op = "raft's log"
	if len(b) < entryHeader {
		return raft.Log{}, &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of entry", Value: index, Limit: entryHeader}
	}
	if b[0] != entryVersion {
		return raft.Log{}, &skep.Error{Op: op, Kind: skep.Version, Field: "version of an entry", Value: b[0], Limit: entryVersion}
	}
	l := raft.Log{Index: index, Type: raft.LogType(b[1]), Term: binary.LittleEndian.Uint64(b[2:])}
	if at := int64(binary.LittleEndian.Uint64(b[10:])); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	size := uint64(binary.LittleEndian.Uint32(b[18:]))
	b = b[entryHeader:]
	if size > uint64(len(b)) {
		return raft.Log{}, &skep.Error{Op: op, Kind: skep.Damaged, Field: "data of entry", Value: index, Limit: len(b)}
	}
	if size > 0 {
		l.Data = append([]byte{}, b[:size]...)
	}
	if uint64(len(b)) > size {
		l.Extensions = append([]byte{}, b[size:]...)
	}
	return l, nil
}

// end is the index of the log's first entry, or its last; 0 where there is none.
func (s *logs) end(last bool) (index uint64, err error) {
	err = s.call(true, func() (err error) {
		index, err = s.endOf(last)
		return err
	})
	return index, err
}

func (s *logs) endOf(last bool) (index uint64, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{rowEntry}, UpperBound: []byte{rowEntry + 1}})
	if err != nil {
		return 0, err
	}
	found := it.First
	if last {
		found = it.Last
	}
	if found() {
		index = binary.BigEndian.Uint64(it.Key()[1:])
	}
	return index, errors.Join(it.Error(), it.Close())
}

// FirstIndex implements raft.LogStore.
func (s *logs) FirstIndex() (uint64, error) { return s.end(false) }

// LastIndex implements raft.LogStore.
func (s *logs) LastIndex() (uint64, error) { return s.end(true) }

// GetLog implements raft.LogStore.
func (s *logs) GetLog(index uint64, l *raft.Log) error {
	there := false
	var got raft.Log
	var bad error
	err := s.call(true, func() error {
		b, closer, err := s.db.Get(entryKey(index))
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		defer closer.Close()
		there = true
		if got, bad = decodeEntry(index, b); bad != nil && s.ends.Load() {
			return bad
		}
		return nil
	})
	switch {
	case err != nil: // f may be writing got yet
		return err
	case bad != nil: // raft does not run, and who opens the log can close it
		return bad
	case !there:
		return raft.ErrLogNotFound
	}
	*l = got
	return nil
}

// StoreLog implements raft.LogStore.
func (s *logs) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore: all of them are on the drive, or none. Where there is too little space none are,
// and the log is as it was: a leader leads no more, and what is sent to another node is sent again.
//
// Entries that follow a snapshot of the leader's leave a gap behind what the node had. What is before it goes: nobody
// agreed to the end of it, perhaps, and raft would send it to others, once this node leads.
func (s *logs) StoreLogs(list []*raft.Log) error {
	if len(list) == 0 {
		return nil
	}
	encoded, size := make([][]byte, len(list)), uint64(0)
	for i, l := range list {
		b, err := encodeEntry(l)
		if err != nil {
			return err
		}
		encoded[i], size = b, size+uint64(len(b))
	}
	if !s.cut.Swap(false) { // else there was space when the log was cut
		s.wanted.Store(max(s.wanted.Load(), size)) // where there is enough, it is 0 again
		if err := s.space(leastSpace + size); err != nil {
			return err
		}
	}
	return s.commit(func(b *pebble.Batch) error {
		if last, err := s.endOf(true); err != nil {
			return err
		} else if first := list[0].Index; last > 0 && first > last+1 {
			if err := b.DeleteRange(entryKey(0), entryKey(first), nil); err != nil {
				return err
			}
		}
		for i, l := range list {
			if err := b.Set(entryKey(l.Index), encoded[i], nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// commit writes a batch: all of it is on the drive, or none.
func (s *logs) commit(fill func(b *pebble.Batch) error) error {
	return s.call(false, func() error {
		b := s.db.NewBatch()
		defer b.Close()
		if err := fill(b); err != nil {
			return err
		}
		return b.Commit(pebble.Sync)
	})
}

// DeleteRange implements raft.LogStore: from lowest to highest, both of them, too.
func (s *logs) DeleteRange(lowest, highest uint64) error {
	if lowest > highest {
		return nil
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if highest >= last { // raft appends in their place next, and has forgotten them where that is refused
		if err := s.space(spaceToCut); err != nil {
			return err
		}
	} else if s.older != nil {
		if highest = min(highest, s.older()); highest < lowest {
			return nil
		}
	}
	end := []byte{rowEntry + 1}
	if highest < math.MaxUint64 {
		end = entryKey(highest + 1)
	}
	err = s.call(false, func() error { return s.db.DeleteRange(entryKey(lowest), end, pebble.Sync) })
	if err == nil && highest >= last {
		s.cut.Store(true)
	}
	return err
}

// Set implements raft.StableStore.
func (s *logs) Set(key, value []byte) error {
	return s.call(true, func() error { return s.db.Set(valueKey(key), value, pebble.Sync) })
}

// Get implements raft.StableStore.
func (s *logs) Get(key []byte) (value []byte, err error) {
	there := false
	err = s.call(true, func() error {
		b, closer, err := s.db.Get(valueKey(key))
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		there = true
		value = append([]byte{}, b...)
		return closer.Close()
	})
	if err == nil && !there {
		return nil, errNoValue
	}
	return value, err
}

// keep is Set for this package, whose goroutines do not end where it fails.
func (s *logs) keep(key, value []byte) error {
	return s.call(false, func() error { return s.db.Set(valueKey(key), value, pebble.Sync) })
}

// SetUint64 implements raft.StableStore.
func (s *logs) SetUint64(key []byte, v uint64) error {
	return s.Set(key, uint64Value(v))
}

func uint64Value(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// GetUint64 implements raft.StableStore.
func (s *logs) GetUint64(key []byte) (uint64, error) {
	b, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, &skep.Error{Op: "raft's log", Kind: skep.Damaged, Field: "size of value " + string(key), Value: len(b), Limit: 8}
	}
	return binary.LittleEndian.Uint64(b), nil
}
