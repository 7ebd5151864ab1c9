//go:build unix

package books

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// Steps of an entry.
const (
	asked   = "asked"   // about to be sent
	done    = "done"    // acknowledged
	refused = "refused" // an error, or no answer
)

// entry is a line of a book.
type entry struct {
	Key     string
	Step    string
	Version uint64 // of the value; 0: a delete
	Size    int
	Life    int       // of the server, as far as is known
	At      time.Time // by the client's clock
}

// value is one that may be there. The zero value is none.
type value struct {
	version uint64
	size    int
}

// held is what a book knows of a key.
type held struct {
	may    map[value]bool
	before map[value]bool // as it was before the last acknowledgement, which came at at
	at     time.Time
	life   int // of the server to which a call went that has no answer yet; 0: none
}

// book is what a client knows to be stored, and its file.
type book struct {
	f    *os.File
	keys map[string]*held
	next uint64 // version
}

// openBook reads the book, if there is one, and goes on with it. What was asked and not answered may have been done.
func openBook(path string) (*book, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	b := &book{f: f, keys: map[string]*held{}}
	r := bufio.NewReader(f)
	end := int64(0)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil { // the last line may be torn: nothing was sent before it was whole
			break
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("the book itself: %w", err)
		}
		end += int64(len(line))
		b.apply(&e)
	}
	if err := f.Truncate(end); err != nil {
		return nil, err
	}
	_, err = f.Seek(end, io.SeekStart)
	return b, err
}

func (b *book) of(key string) *held {
	h := b.keys[key]
	if h == nil {
		h = &held{may: map[value]bool{{}: true}}
		b.keys[key] = h
	}
	return h
}

func (b *book) apply(e *entry) {
	h, v := b.of(e.Key), value{e.Version, e.Size}
	b.next = max(b.next, e.Version)
	switch e.Step {
	case asked:
		if e.At.Sub(h.at) > 2*time.Second { // by the book's time, whoever reads it later
			h.before = nil
		}
		h.before = merged(h.before, h.may)
		h.may[v] = true
		h.life = e.Life
	case done:
		h.may = map[value]bool{v: true}
		h.at, h.life = e.At, 0
	}
}

// write notes e in the file before anything is done about it.
func (b *book) write(e entry) error {
	e.At = time.Now()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := b.f.Write(append(line, '\n')); err != nil {
		return err
	}
	b.apply(&e)
	return nil
}

// restarted is told of a kill: with cache, what was acknowledged shortly before may be what it was before.
func (b *book) restarted(cache bool) {
	for _, h := range b.keys {
		if cache && time.Since(h.at) < 20*time.Second {
			maps.Copy(h.may, h.before)
		}
	}
}

// check compares what was read with what may be there.
func (b *book) check(key string, got []byte, found, cache bool) error {
	h := b.of(key)
	if !found {
		if h.may[value{}] || cache {
			return nil
		}
		return fmt.Errorf("%s: acknowledged and not there; may be %v", key, h.list())
	}
	for v := range h.may {
		if v.version != 0 && bytes.Equal(got, valueOf(key, v)) {
			return nil
		}
	}
	if len(got) >= 16 { // what is it then
		is := value{binary.LittleEndian.Uint64(got[8:]), len(got)}
		if bytes.Equal(got, valueOf(key, is)) {
			return fmt.Errorf("%s: version %d is back, whole; may be %v", key, is.version, h.list())
		}
	}
	return fmt.Errorf("%s: WRONG BYTES, %d of them; may be %v", key, len(got), h.list())
}

func merged(a, b map[value]bool) map[value]bool {
	out := maps.Clone(b)
	maps.Copy(out, a)
	return out
}

func (h *held) list() []value {
	return slices.SortedFunc(maps.Keys(h.may), func(a, b value) int { return int(a.version) - int(b.version) })
}

// valueOf is what is put under a key as a version: its name's hash, its version, and bytes that follow from both.
func valueOf(key string, v value) []byte {
	if v.size < 16 {
		return nil
	}
	sum := sha256.Sum256([]byte(key))
	out := make([]byte, v.size)
	copy(out, sum[:8])
	binary.LittleEndian.PutUint64(out[8:], v.version)
	binary.LittleEndian.PutUint64(sum[24:], v.version)
	_, _ = rand.NewChaCha8(sum).Read(out[16:])
	return out
}
