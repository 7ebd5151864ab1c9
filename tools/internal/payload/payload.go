// Package payload makes the bytes of a block from its key, and compares bytes
// that came back with them, both at the speed of a memory copy.
//
// A block is made of pages of 4 KiB. Each is a window of one fixed mebibyte of
// random bytes, placed by a hash of key and page number, with that hash's 16
// bytes on top. So any two pages differ in their first bytes and, but for one
// chance in 131,072, everywhere; bytes of another block, another page or an
// older version never compare as right.
//
// Invariants: the bytes are a pure function of key and offset and the same in
// every run and on every machine; Check looks at every byte.
package payload

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"github.com/skepkv/skep"
)

const (
	page  = 4096
	stamp = 16      // bytes
	spots = 1 << 17 // windows, 8 bytes apart: 1 MiB, which a core's own cache holds
)

var source = func() []byte {
	b := make([]byte, 8*spots+page)
	rand.NewChaCha8([32]byte([]byte("skep payload, format 1, 32 bytes"))).Read(b)
	return b
}()

// seed folds a key into 64 bits.
func seed(key *skep.Key) uint64 {
	var h uint64
	for i := 0; i < skep.KeySize; i += 8 {
		h = mix(h^binary.LittleEndian.Uint64(key[i:]), 0x9e3779b97f4a7c15)
	}
	return h
}

// mix is the folded product of wyhash.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x2d358dccaa6c78a5, b^0x8bb84b93962eacc9)
	return hi ^ lo
}

// at gives the stamp of page i and the window under it.
func at(seed uint64, i int) (a, b uint64, window []byte) {
	a = mix(seed, uint64(i))
	b = mix(a, seed)
	off := 8 * (b >> 47) // 17 bits
	return a, b, source[off : off+page]
}

// Fill writes key's bytes to dst.
func Fill(dst []byte, key skep.Key) {
	s := seed(&key)
	for i := 0; len(dst) > 0; i++ {
		n := min(page, len(dst))
		fillPage(dst[:n], s, i)
		dst = dst[n:]
	}
}

func fillPage(dst []byte, s uint64, i int) {
	a, b, window := at(s, i)
	copy(dst, window)
	if len(dst) >= stamp {
		binary.LittleEndian.PutUint64(dst, a)
		binary.LittleEndian.PutUint64(dst[8:], b)
	}
}

// Check compares got with key's bytes and returns how many are wrong.
func Check(got []byte, key skep.Key) (wrong int64) {
	s := seed(&key)
	for i := 0; len(got) > 0; i++ {
		n := min(page, len(got))
		if !rightPage(got[:n], s, i) {
			wrong += wrongIn(got[:n], s, i)
		}
		got = got[n:]
	}
	return wrong
}

func rightPage(p []byte, s uint64, i int) bool {
	a, b, window := at(s, i)
	if len(p) < stamp {
		return bytes.Equal(p, window[:len(p)])
	}
	return binary.LittleEndian.Uint64(p) == a && binary.LittleEndian.Uint64(p[8:]) == b &&
		bytes.Equal(p[stamp:], window[stamp:len(p)])
}

func wrongIn(p []byte, s uint64, i int) (wrong int64) {
	var want [page]byte
	fillPage(want[:len(p)], s, i)
	for k, b := range p {
		if b != want[k] {
			wrong++
		}
	}
	return wrong
}
