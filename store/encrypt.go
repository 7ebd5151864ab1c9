package store

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// Encryption at rest. A block of a tenant with a key is encrypted when its append starts,
// after it was placed and before a byte of it goes to a drive or the catalog: granule by
// granule, same lengths, same places. From there to the worker that checks a chunk,
// everything handles ciphertext and checksums of it, without a key: cleaning, repair,
// compaction, scrub, verify, rebuild. The DRAM tier has what was put. docs/format.md says
// what the bytes are.

// blockCipher is the cipher of one write of one block. The key is that write's own, so its
// GCM nonces need be unique in the block only.
func (s *Store) blockCipher(k *sealKey, nonce [segment.NonceSize]byte) (cipher.AEAD, error) {
	b, err := aes.NewCipher(derive(k.key, nonce[:], "skep block 1"+string(s.id[:]), encryptionKeySize))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(b)
}

// partCipher encrypts and decrypts the granules of one part.
type partCipher struct {
	aead  cipher.AEAD
	nonce [12]byte
	bound []byte // what the ciphertext is of
}

func newPartCipher(aead cipher.AEAD, rec *segment.Record, part int) *partCipher {
	c := &partCipher{aead: aead}
	binary.LittleEndian.PutUint32(c.nonce[:], uint32(part))
	p := &rec.Parts[part]
	c.bound = segment.AppendIdentity(nil, rec.Instance, rec.SaltTag, rec.Key, rec.Version)
	c.bound = binary.LittleEndian.AppendUint64(c.bound, uint64(p.Size))
	c.bound = append(c.bound, p.Name...)
	return c
}

// sealedSums is the granule that a part's checksums are encrypted as.
const sealedSums = ^uint64(0)

func (c *partCipher) at(granule uint64) []byte {
	n := c.nonce
	binary.LittleEndian.PutUint64(n[4:], granule)
	return n[:]
}

// sealing takes memory for the ciphertext of an append's blocks and fills it. errScarce:
// there is no memory now, and it is not to be waited for. On an error it holds none.
func (s *Store) sealing(ctx context.Context, ns *namespace, a *appending, patient bool) error {
	var todo []*incoming
	var lens []int
	total := 0
	for _, in := range a.blocks {
		if in.key == nil || in.moved != nil {
			continue
		}
		todo = append(todo, in)
		if in.loc.Device == inlineDevice {
			continue
		}
		for i := range in.parts {
			n := pagesOf(int64(len(in.parts[i].Bytes))) * layout.PageSize
			lens = append(lens, s.arena.Split(n)...)
			total += n
		}
	}
	if len(todo) == 0 {
		return nil
	}
	mem, err := s.sealMemory(ctx, a, lens, total, patient)
	if err != nil {
		return err
	}
	for _, in := range todo {
		if mem, err = s.sealBlock(ns, in, mem); err != nil {
			releaseAll(a.cipher)
			a.cipher = nil
			return err
		}
	}
	return nil
}

// sealMemory gives memory of these lengths: I/O buffers, which a keeps until its writes
// have ended. A block that would take most of those has memory of its own.
func (s *Store) sealMemory(ctx context.Context, a *appending, lens []int, total int, patient bool) ([][]byte, error) {
	mem := make([][]byte, len(lens))
	switch {
	case total == 0:
		return mem, nil
	case int64(total) > s.options.IOBytes/2:
		for i, n := range lens {
			mem[i] = device.AlignedBuffer(n)
		}
		return mem, nil
	}
	bufs, err := s.arena.TryAllocVec(lens, memory.BudgetIO)
	if err != nil && !patient {
		return nil, errScarce
	}
	if err != nil {
		wait, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
		bufs, err = s.arena.AllocVec(wait, lens, memory.BudgetIO)
		cancel()
	}
	if err != nil {
		return nil, noMemory("encrypt", err)
	}
	a.cipher = bufs
	for i := range bufs {
		mem[i] = bufs[i].Bytes()[:lens[i]]
	}
	return mem, nil
}

// sealBlock encrypts one block into the first of mem, and completes its record. It gives
// what is left of mem.
func (s *Store) sealBlock(ns *namespace, in *incoming, mem [][]byte) ([][]byte, error) {
	seal := &segment.Seal{Key: in.key.id}
	rand.Read(seal.Nonce[:])
	aead, err := s.blockCipher(in.key, seal.Nonce)
	if err != nil {
		return nil, err
	}
	if in.clear == nil {
		in.clear = in.rec.Parts
	}
	// Others may be reading the parts of an accepted block's record.
	parts := slices.Clone(in.clear)
	in.cipher = in.cipher[:0]
	for i := range parts {
		p := &parts[i]
		g, err := s.granules(ns, p.Name, p.Size)
		if err != nil {
			return nil, err
		}
		sums := p.Sums
		if !in.accepted { // those have them already, and the version they were made with
			sums = make([]uint64, g.N())
			s.sumInto(ns, in, i, sums)
		}
		var into [][]byte
		switch {
		case in.loc.Device == inlineDevice:
			p.Inline = make([]byte, p.Size)
			into = [][]byte{p.Inline}
		default:
			for n := int64(pagesOf(p.Size)) * layout.PageSize; n > 0; mem = mem[1:] {
				into = append(into, mem[0])
				in.cipher = append(in.cipher, skep.Part{Bytes: mem[0]})
				n -= int64(len(mem[0]))
			}
		}
		p.Sums = make([]uint64, g.N())
		p.Seal = make([]byte, 0, segment.SealSize(g.N()))
		c := newPartCipher(aead, &in.rec, i)
		seed := segment.NewSeed(in.rec.Instance, in.rec.SaltTag, in.rec.Key, p.Name, in.rec.Version)
		c.seal(p, g, seed, in.parts[i].Bytes, into)
		raw := make([]byte, 0, 8*len(sums)+segment.TagSize)
		for _, sum := range sums {
			raw = binary.LittleEndian.AppendUint64(raw, sum)
		}
		p.Seal = append(p.Seal, aead.Seal(raw[:0], c.at(sealedSums), raw, c.bound)...)
	}
	in.rec.Parts, in.rec.Sealed = parts, seal
	return mem, nil
}

// seal encrypts data into the pieces of into, and adds checksums and tags to p.
func (c *partCipher) seal(p *segment.RecordPart, g layout.Granules, seed segment.Seed, data []byte, into [][]byte) {
	scratch := getScratch()
	defer putScratch(scratch)
	for j := range p.Sums {
		sp := g.Span(j)
		out := c.aead.Seal((*scratch)[:0], c.at(uint64(j)), data[sp.Off:sp.End()], c.bound)
		*scratch = out
		p.Sums[j] = seed.Sum(j, out[:sp.Len])
		p.Seal = append(p.Seal, out[sp.Len:]...)
		copyTo(into, sp.Off, out[:sp.Len])
	}
	rest := p.Size // the padding
	for _, m := range into {
		clear(m[min(rest, int64(len(m))):])
		rest = max(0, rest-int64(len(m)))
	}
}

// copyTo copies src to where off is in pieces that follow one another.
func copyTo(pieces [][]byte, off int64, src []byte) {
	for _, m := range pieces {
		if off < int64(len(m)) {
			src = src[copy(m[off:], src):]
			off = 0
		} else {
			off -= int64(len(m))
		}
		if len(src) == 0 {
			return
		}
	}
}

// scratches are buffers of a granule and its tag.
var scratches = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10+segment.TagSize); return &b }}

func getScratch() *[]byte { return scratches.Get().(*[]byte) }

func putScratch(b *[]byte) {
	if cap(*b) <= 1<<20 {
		scratches.Put(b)
	}
}

// stored is what of the block goes to its places.
func (in *incoming) stored() []skep.Part {
	if in.cipher != nil {
		return in.cipher
	}
	return in.parts
}

// sealLen is how much longer the block's record gets when it is sealed, in bytes.
func (in *incoming) sealLen() (n int) {
	if in.key == nil || in.moved != nil || in.rec.Sealed != nil {
		return 0
	}
	sealed := segment.Record{Sealed: &segment.Seal{}}
	n = sealed.Len() - new(segment.Record).Len()
	for i := range in.rec.Parts {
		n += segment.SealSize(len(in.rec.Parts[i].Sums))
	}
	return n
}

// opener decrypts a part of a sealed block.
type opener struct {
	*partCipher
	tags []byte
	sums []uint64 // of the bytes that were put
}

// newOpener prepares reading a part of rec, of which it keeps nothing. Nil: rec is not
// sealed. Errors: Denied when the key is not there; Damaged when the seal is not the block's.
func (s *Store) newOpener(tenant string, rec *segment.Record, part int) (*opener, error) {
	if rec.Sealed == nil {
		return nil, nil
	}
	k, err := s.keyring().find(tenant, rec.Sealed.Key)
	if err != nil {
		return nil, err
	}
	aead, err := s.blockCipher(k, rec.Sealed.Nonce)
	if err != nil {
		return nil, err
	}
	p := &rec.Parts[part]
	tags := len(p.Sums) * segment.TagSize
	o := &opener{partCipher: newPartCipher(aead, rec, part), tags: slices.Clone(p.Seal[:tags])}
	raw, err := aead.Open(nil, o.at(sealedSums), p.Seal[tags:], o.bound)
	if err != nil {
		return nil, errSeal(p.Name)
	}
	o.sums = make([]uint64, len(p.Sums))
	for i := range o.sums {
		o.sums[i] = binary.LittleEndian.Uint64(raw[8*i:])
	}
	return o, nil
}

func errSeal(part string) error {
	return &skep.Error{Op: "decrypt", Kind: skep.Damaged, Field: "seal of part " + part}
}

// granule decrypts granule g, whose bytes lie in pieces from piece *at on, in place.
func (o *opener) granule(g int, s layout.Span, pieces []piece, at *int) bool {
	scratch := getScratch()
	defer putScratch(scratch)
	for *at < len(pieces) && pieces[*at].off+int64(len(pieces[*at].mem)) <= s.Off {
		*at++
	}
	buf := (*scratch)[:0]
	off := s.Off
	for i := *at; i < len(pieces) && off < s.End(); i++ {
		p := &pieces[i]
		if p.off > off {
			break
		}
		if end := p.off + int64(len(p.mem)); end > off {
			to := min(end, s.End())
			buf = append(buf, p.mem[off-p.off:to-p.off]...)
			off = to
		}
	}
	if off != s.End() {
		return false
	}
	buf = append(buf, o.tags[g*segment.TagSize:(g+1)*segment.TagSize]...)
	*scratch = buf
	if p := &pieces[*at]; p.off+int64(len(p.mem)) >= s.End() { // as nearly all are
		dst := p.mem[s.Off-p.off : s.Off-p.off : s.End()-p.off]
		_, err := o.aead.Open(dst, o.at(uint64(g)), buf, o.bound)
		return err == nil
	}
	clear, err := o.aead.Open(buf[:0], o.at(uint64(g)), buf, o.bound)
	if err != nil {
		return false
	}
	for i := *at; len(clear) > 0; i++ {
		p := &pieces[i]
		if from := max(s.Off-p.off, 0); from < int64(len(p.mem)) {
			clear = clear[copy(p.mem[from:], clear):]
		}
	}
	return true
}

// all decrypts a whole part in place.
func (o *opener) all(g layout.Granules, part []byte) bool {
	at := 0
	for i := range g.N() {
		if !o.granule(i, g.Span(i), []piece{{mem: part}}, &at) {
			return false
		}
	}
	return true
}

// unseal decrypts what was read of a chunk, once it was checked. The error is of kind
// Damaged; what was read is of no use then.
func (ch *chunk) unseal() error {
	f := ch.at
	if f.opener == nil {
		return nil
	}
	next, at := 0, 0
	for _, s := range ch.spans {
		first, last := f.granules.Cover(s)
		for g := max(first, next); g <= last; g++ {
			if !f.opener.granule(g, f.granules.Span(g), ch.pieces, &at) {
				return errSeal(ch.chain.part)
			}
		}
		next = max(next, last+1)
	}
	return nil
}

// clearSums gives rec the checksums of what was put, where it is sealed.
func (s *Store) clearSums(tenant string, rec *segment.Record) error {
	for i := range rec.Parts {
		o, err := s.newOpener(tenant, rec, i)
		if err != nil {
			return err
		}
		if o != nil {
			rec.Parts[i].Sums = o.sums
		}
	}
	return nil
}
