package wire

import (
	"math"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
)

// coder writes the fields of a message to b, or reads them from it: a message names its
// fields once, in walk, and both directions follow that. All numbers are little-endian.
// After the first error it does nothing more.
//
// Reading makes no allocation larger than what b holds would fill: counts are compared
// with the bytes that are left before anything is made, and what is made is paid for first.
type coder struct {
	b       []byte
	at      int // next byte to read
	reading bool
	err     error
	purse   purse // pays for what reading makes; nil: nobody counts
}

// purse pays for memory before it is made, in bytes. An error ends the reading.
type purse interface{ spend(n int64) error }

// pay is called before n bytes are made. False: they must not be.
func (c *coder) pay(n int64) bool {
	if c.err == nil && c.purse != nil {
		c.err = c.purse.spend(n)
	}
	return c.err == nil
}

func (c *coder) fail(field string, value, limit any) {
	if c.err == nil {
		c.err = skep.Invalidf("frame", field, value, limit)
	}
}

// take gives the next n bytes when reading.
func (c *coder) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if n < 0 || len(c.b)-c.at < n {
		c.fail("bytes left in the body", len(c.b)-c.at, n)
		return nil
	}
	p := c.b[c.at : c.at+n : c.at+n]
	c.at += n
	return p
}

func (c *coder) u8(v *uint8) {
	if !c.reading {
		c.b = append(c.b, *v)
	} else if p := c.take(1); p != nil {
		*v = p[0]
	}
}

func (c *coder) u16(v *uint16) {
	if !c.reading {
		c.b = le.AppendUint16(c.b, *v)
	} else if p := c.take(2); p != nil {
		*v = le.Uint16(p)
	}
}

func (c *coder) u32(v *uint32) {
	if !c.reading {
		c.b = le.AppendUint32(c.b, *v)
	} else if p := c.take(4); p != nil {
		*v = le.Uint32(p)
	}
}

func (c *coder) u64(v *uint64) {
	if !c.reading {
		c.b = le.AppendUint64(c.b, *v)
	} else if p := c.take(8); p != nil {
		*v = le.Uint64(p)
	}
}

func (c *coder) i64(v *int64) {
	u := uint64(*v)
	c.u64(&u)
	*v = int64(u)
}

// int is a signed number of 64 bits.
func (c *coder) int(v *int) {
	n := int64(*v)
	c.i64(&n)
	*v = int(n)
}

func (c *coder) f64(v *float64) {
	u := math.Float64bits(*v)
	c.u64(&u)
	*v = math.Float64frombits(u)
}

// duration is nanoseconds.
func (c *coder) duration(v *time.Duration) { c.i64((*int64)(v)) }

// flag is one byte, 0 or 1.
func (c *coder) flag(v *bool) {
	var u uint8
	if *v {
		u = 1
	}
	c.u8(&u)
	if u > 1 {
		c.fail("flag", u, "0 or 1")
	}
	*v = u == 1
}

// enum is a number of 8 bits with a type of its own.
func enum[T ~uint8](c *coder, v *T) {
	u := uint8(*v)
	c.u8(&u)
	*v = T(u)
}

func (c *coder) kind(v *skep.Kind) {
	u := uint16(*v)
	c.u16(&u)
	*v = skep.Kind(u)
}

// text is a length of 16 bits and as many bytes.
func text[T ~string](c *coder, v *T) {
	if !c.reading && len(*v) > math.MaxUint16 {
		c.fail("length of a string", len(*v), "at most 65535 bytes")
		return
	}
	n := uint16(len(*v))
	c.u16(&n)
	if !c.reading {
		c.b = append(c.b, *v...)
	} else if p := c.take(int(n)); n > 0 && p != nil && c.pay(int64(n)) {
		*v = T(p)
	}
}

// bytes is a length of 32 bits and as many bytes. Reading shares the body's memory.
func (c *coder) bytes(v *[]byte) {
	n := uint32(len(*v))
	c.u32(&n)
	if !c.reading {
		c.b = append(c.b, *v...)
	} else if p := c.take(int(n)); len(p) > 0 {
		*v = p
	}
}

func (c *coder) fixed(v []byte) {
	if !c.reading {
		c.b = append(c.b, v...)
	} else if p := c.take(len(v)); p != nil {
		copy(v, p)
	}
}

func (c *coder) key(v *skep.Key) { c.fixed(v[:]) }

// maybeKey is a flag and, when it is set, a key.
func (c *coder) maybeKey(v **skep.Key) {
	set := *v != nil
	c.flag(&set)
	if !set || c.err != nil {
		return
	}
	if c.reading {
		if !c.pay(skep.KeySize) {
			return
		}
		*v = new(skep.Key)
	}
	c.key(*v)
}

// keys is a count of 32 bits and as many keys. Reading shares the body's memory.
func (c *coder) keys(v *[]skep.Key) {
	n := uint32(len(*v))
	c.u32(&n)
	if !c.reading {
		if n > 0 {
			c.b = append(c.b, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(*v))), int(n)*skep.KeySize)...)
		}
		return
	}
	if uint64(n)*skep.KeySize > uint64(len(c.b)-c.at) {
		c.fail("keys", n, "as many as the body holds")
		return
	}
	if p := c.take(int(n) * skep.KeySize); len(p) > 0 {
		*v = unsafe.Slice((*skep.Key)(unsafe.Pointer(unsafe.SliceData(p))), int(n)) // a Key is bytes: no alignment
	}
}

// list is a count of 32 bits and as many elements, each of at least least bytes.
func list[T any](c *coder, v *[]T, least int, each func(*coder, *T)) {
	n := uint32(len(*v))
	c.u32(&n)
	if c.err != nil {
		return
	}
	if c.reading {
		if uint64(n)*uint64(least) > uint64(len(c.b)-c.at) {
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

func (c *coder) span(v *skep.Range) {
	c.int(&v.From)
	c.int(&v.To)
}

func (c *coder) cost(v *skep.RecomputeCost) {
	c.duration(&v.Fixed)
	c.duration(&v.PerToken)
	c.f64(&v.PerTokenSquared)
}

func (c *coder) scope(v *skep.Scope) {
	u := uint32(v.Namespace)
	c.u32(&u)
	v.Namespace = skep.NamespaceID(u)
	text(c, &v.Salt)
}
