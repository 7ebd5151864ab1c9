package frames

import (
	"math"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

// Coder writes the fields of a message to b, or reads them from it: a message names its
// fields once, in walk, and both directions follow that. All numbers are little-endian.
// After the first error it does nothing more.
//
// Reading makes no allocation larger than what b holds would fill: counts are compared
// with the bytes that are left before anything is made, and what is made is paid for first.
type Coder struct {
	Body    []byte
	At      int // next byte to read
	reading bool
	err     error
	purse   purse // pays for what reading makes; nil: nobody counts
}

// purse pays for memory before it is made, in bytes. An error ends the reading.
type purse interface{ Spend(n int64) error }

// pay is called before n bytes are made. False: they must not be.
func (c *Coder) pay(n int64) bool {
	if c.err == nil && c.purse != nil {
		c.err = c.purse.Spend(n)
	}
	return c.err == nil
}

func (c *Coder) fail(field string, value, limit any) {
	if c.err == nil {
		c.err = skep.Invalidf("frame", field, value, limit)
	}
}

// Take gives the next n bytes when reading.
func (c *Coder) Take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if n < 0 || len(c.Body)-c.At < n {
		c.fail("bytes left in the body", len(c.Body)-c.At, n)
		return nil
	}
	p := c.Body[c.At : c.At+n : c.At+n]
	c.At += n
	return p
}

// A field goes in by its value and comes out of what was read: whoever encodes a message reads it only, for
// it may be shared by many calls at once. Everything of a fixed size passes through these four. When writing
// they write v and give false; when reading they give what was read and true.

func (c *Coder) carry8(v uint8) (uint8, bool) {
	if !c.reading {
		c.Body = append(c.Body, v)
	} else if p := c.Take(1); p != nil {
		return p[0], true
	}
	return 0, false
}

func (c *Coder) carry16(v uint16) (uint16, bool) {
	if !c.reading {
		c.Body = LittleEndian.AppendUint16(c.Body, v)
	} else if p := c.Take(2); p != nil {
		return LittleEndian.Uint16(p), true
	}
	return 0, false
}

func (c *Coder) carry32(v uint32) (uint32, bool) {
	if !c.reading {
		c.Body = LittleEndian.AppendUint32(c.Body, v)
	} else if p := c.Take(4); p != nil {
		return LittleEndian.Uint32(p), true
	}
	return 0, false
}

func (c *Coder) carry64(v uint64) (uint64, bool) {
	if !c.reading {
		c.Body = LittleEndian.AppendUint64(c.Body, v)
	} else if p := c.Take(8); p != nil {
		return LittleEndian.Uint64(p), true
	}
	return 0, false
}

// whole is any type of numbers.
type whole interface {
	~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// num8 to num64 are a number of so many bits, of whatever type.
func num8[T whole](c *Coder, v *T) {
	if u, ok := c.carry8(uint8(*v)); ok {
		*v = T(u)
	}
}

func num16[T whole](c *Coder, v *T) {
	if u, ok := c.carry16(uint16(*v)); ok {
		*v = T(u)
	}
}

func num32[T whole](c *Coder, v *T) {
	if u, ok := c.carry32(uint32(*v)); ok {
		*v = T(u)
	}
}

func num64[T whole](c *Coder, v *T) {
	if u, ok := c.carry64(uint64(*v)); ok {
		*v = T(u)
	}
}

func (c *Coder) u8(v *uint8)   { num8(c, v) }
func (c *Coder) u32(v *uint32) { num32(c, v) }
func (c *Coder) u64(v *uint64) { num64(c, v) }
func (c *Coder) i64(v *int64)  { num64(c, v) }

// int is a signed number of 64 bits.
func (c *Coder) int(v *int) { num64(c, v) }

func (c *Coder) f64(v *float64) {
	if u, ok := c.carry64(math.Float64bits(*v)); ok {
		*v = math.Float64frombits(u)
	}
}

// duration is nanoseconds.
func (c *Coder) duration(v *time.Duration) { num64(c, v) }

// has is a flag, one byte, 0 or 1: set when writing, what was read when reading.
func (c *Coder) has(set bool) bool {
	var u uint8
	if set {
		u = 1
	}
	u, ok := c.carry8(u)
	switch {
	case !ok:
		return set && !c.reading
	case u > 1:
		c.fail("flag", u, "0 or 1")
	}
	return u == 1
}

func (c *Coder) flag(v *bool) {
	if set := c.has(*v); c.reading {
		*v = set
	}
}

// enum is a number of 8 bits with a type of its own.
func enum[T ~uint8](c *Coder, v *T) { num8(c, v) }

func (c *Coder) kind(v *skep.Kind) { num16(c, v) }

// length is a count before its elements.
func (c *Coder) length(n int) int {
	u, ok := c.carry32(uint32(n))
	switch {
	case !c.reading:
		return n
	case ok && u <= math.MaxInt32:
		return int(u)
	}
	c.fail("length", u, "as many as the body holds")
	return 0
}

// maybe is a flag and, when it is set, a T of so many bytes, made where it is read. It says whether there is one.
func maybe[T any](c *Coder, v **T) bool {
	if !c.has(*v != nil) || c.err != nil {
		return false
	}
	if c.reading {
		if !c.pay(int64(unsafe.Sizeof(**v))) {
			return false
		}
		*v = new(T)
	}
	return true
}

// text is a length of 16 bits and as many bytes.
func text[T ~string](c *Coder, v *T) {
	if !c.reading && len(*v) > math.MaxUint16 {
		c.fail("length of a string", len(*v), "at most 65535 bytes")
		return
	}
	n, reading := c.carry16(uint16(len(*v)))
	if !c.reading {
		c.Body = append(c.Body, *v...)
	} else if p := c.Take(int(n)); reading && n > 0 && p != nil && c.pay(int64(n)) {
		*v = T(p)
	}
}

// bytes is a length of 32 bits and as many bytes. Reading shares the body's memory.
func (c *Coder) bytes(v *[]byte) {
	n := c.length(len(*v))
	if !c.reading {
		c.Body = append(c.Body, *v...)
	} else if p := c.Take(n); len(p) > 0 {
		*v = p
	}
}

func (c *Coder) fixed(v []byte) {
	if !c.reading {
		c.Body = append(c.Body, v...)
	} else if p := c.Take(len(v)); p != nil {
		copy(v, p)
	}
}

func (c *Coder) key(v *skep.Key) { c.fixed(v[:]) }

func (c *Coder) maybeKey(v **skep.Key) {
	if maybe(c, v) {
		c.key(*v)
	}
}

// keys is a count of 32 bits and as many keys. Reading shares the body's memory.
func (c *Coder) keys(v *[]skep.Key) {
	n := c.length(len(*v))
	if !c.reading {
		if n > 0 {
			c.Body = append(c.Body, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(*v))), n*skep.KeySize)...)
		}
		return
	}
	if uint64(n)*skep.KeySize > uint64(len(c.Body)-c.At) {
		c.fail("keys", n, "as many as the body holds")
		return
	}
	if p := c.Take(n * skep.KeySize); len(p) > 0 {
		*v = unsafe.Slice((*skep.Key)(unsafe.Pointer(unsafe.SliceData(p))), n) // a Key is bytes: no alignment
	}
}

// list is a count of 32 bits and as many elements, each of at least least bytes.
func list[T any](c *Coder, v *[]T, least int, each func(*Coder, *T)) {
	n := c.length(len(*v))
	if c.err != nil {
		return
	}
	if c.reading {
		if uint64(n)*uint64(least) > uint64(len(c.Body)-c.At) {
			c.fail("elements of a list", n, "as many as the body holds")
			return
		}
		if n > 0 && c.pay(int64(n)*int64(unsafe.Sizeof(*new(T)))) {
			*v = make([]T, n)
		}
	}
	for i := range *v {
		if each(c, &(*v)[i]); c.err != nil {
			return
		}
	}
}

// Subset is what a range stands for as it travels: 0, 0 is everything.
func Subset(r skep.Range) skep.Subset {
	if r == (skep.Range{}) {
		return skep.All
	}
	return r.Subset()
}

// Travelling is a Subset as it travels. What is empty at 0 would be read as everything there.
func Travelling(op, field string, s skep.Subset) (skep.Range, error) {
	r, some := s.Bounds()
	if some && r == (skep.Range{}) {
		return r, skep.Invalidf(op, field, s, "not empty")
	}
	return r, nil
}

func (c *Coder) span(v *skep.Range) {
	c.int(&v.From)
	c.int(&v.To)
}

func (c *Coder) cost(v *skep.RecomputeCost) {
	c.duration(&v.Fixed)
	c.duration(&v.PerToken)
	c.f64(&v.PerTokenSquared)
}

func (c *Coder) scope(v *skep.Scope) {
	num32(c, &v.Namespace)
	text(c, &v.Salt)
}
