package segment

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func superblockPage(t testing.TB, s Superblock) []byte {
	page := make([]byte, PageSize)
	require.NoError(t, s.Encode(page))
	return page
}

func headerPage(t testing.TB, h Header) []byte {
	page := make([]byte, PageSize)
	require.NoError(t, h.Encode(page))
	return page
}

func TestSuperblockRoundTrip(t *testing.T) {
	t.Parallel()
	s := sampleSuperblock()
	got, err := DecodeSuperblock(superblockPage(t, s))
	require.NoError(t, err)
	assert.Equal(t, s, got)
	assert.Equal(t, (1<<40-1<<20)/(64<<20), got.Segments())
	assert.EqualValues(t, int64(ReservedBytes)+2*(64<<20), got.SegmentOffset(2))
	assert.Equal(t, "hidden", got.HashSecret.String())
	s.Capacity, s.MadeCount, s.GivenUp = 1<<45+1, 3, []uint16{0, 3, MaxDevices - 1}
	got, err = DecodeSuperblock(superblockPage(t, s))
	require.NoError(t, err)
	assert.Equal(t, s, got)
	for s.GivenUp = nil; len(s.GivenUp) < MaxGivenUp; {
		s.GivenUp = append(s.GivenUp, uint16(len(s.GivenUp)))
	}
	got, err = DecodeSuperblock(superblockPage(t, s))
	require.NoError(t, err)
	assert.Equal(t, s, got)
}

func TestHeaderRoundTrip(t *testing.T) {
	t.Parallel()
	full := sampleHeader()
	full.Devices = nil
	for i := range MaxGroupDevices {
		full.Devices = append(full.Devices, Slot{Device: uint16(i), Segment: uint32(100 + i)})
	}
	full.Position, full.Segment = 63, 163
	for _, h := range []Header{sampleHeader(), full} {
		got, err := DecodeHeader(headerPage(t, h))
		require.NoError(t, err)
		assert.Equal(t, h, got)
		assert.NoError(t, got.Expect(h.Store, h.Device, h.Segment))
		assert.ErrorIs(t, got.Expect(StoreID{}, h.Device, h.Segment), skep.Foreign)
		assert.ErrorIs(t, got.Expect(h.Store, DeviceID{}, h.Segment), skep.Foreign)
		assert.ErrorIs(t, got.Expect(h.Store, h.Device, h.Segment+1), skep.Damaged)
	}
}

// Not ours, newer and damaged are three different things.
func TestPageVerdicts(t *testing.T) {
	t.Parallel()
	edit := func(page []byte, seal bool, f func([]byte)) []byte {
		f(page)
		if seal {
			sealPage(page, 0)
		}
		return page
	}
	another := func(p []byte) { le.PutUint32(p[offFormat:], FormatVersion+1) }
	for _, c := range []struct {
		name string
		seal bool
		edit func([]byte)
		want skep.Kind
		text string
	}{
		{"blank", false, func(p []byte) { clear(p) }, skep.Foreign, "magic is blank"},
		{"another magic", false, func(p []byte) { copy(p, "XFSB\x00\x00\x10\x00") }, skep.Foreign, "XFSB"},
		{"another format", true, another, skep.Version, "format is 2, must be 1,"},
		{"bit of the format flipped", false, another, skep.Damaged, "checksum"},
		{"format zero", true, func(p []byte) { le.PutUint32(p[offFormat:], 0) }, skep.Version, "format is 0, must be 1,"},
		{"payload flipped", false, func(p []byte) { p[100] ^= 1 }, skep.Damaged, "checksum"},
		{"spare byte set", true, func(p []byte) { p[3000] = 1 }, skep.Damaged, "spare bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeSuperblock(edit(superblockPage(t, sampleSuperblock()), c.seal, c.edit))
			assert.Equal(t, c.want, skep.KindOf(err))
			assert.ErrorContains(t, err, c.text)
			_, err = DecodeHeader(edit(headerPage(t, sampleHeader()), c.seal, c.edit))
			assert.Equal(t, c.want, skep.KindOf(err))
			assert.ErrorContains(t, err, c.text)
		})
	}
	_, err := DecodeSuperblock(make([]byte, 100))
	assert.ErrorIs(t, err, skep.Invalid)
	for text, edit := range map[string]func(page []byte){
		"devices given up is 1025":               func(p []byte) { le.PutUint16(p[sbGivenUpCount:], MaxGivenUp+1) },
		"device given up is 0, must be above 0,": func(p []byte) { le.PutUint16(p[sbGivenUpCount:], 2) },
		"spare bytes":                            func(p []byte) { le.PutUint16(p[sbGivenUp:], 2) },
	} {
		page := superblockPage(t, sampleSuperblock())
		edit(page)
		sealPage(page, 0)
		_, err = DecodeSuperblock(page)
		assert.Equal(t, skep.Damaged, skep.KindOf(err), text)
		assert.ErrorContains(t, err, text)
	}
	slot := headerPage(t, sampleHeader())
	slot[shDevices+slotSize+slotSpare] = 1
	sealPage(slot, 0)
	_, err = DecodeHeader(slot)
	assert.ErrorContains(t, err, "spare bytes")
	_, err = DecodeHeader(superblockPage(t, sampleSuperblock()))
	assert.ErrorIs(t, err, skep.Foreign)
}

func TestSuperblockLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		edit func(*Superblock)
	}{
		{"sequence is 0", func(s *Superblock) { s.Sequence = 0 }},
		{"serial length in bytes is 129", func(s *Superblock) { s.Serial = strings.Repeat("x", 129) }},
		{"free of zero bytes", func(s *Superblock) { s.Serial = "a\x00b" }},
		{"device count is 0", func(s *Superblock) { s.DeviceCount = 0 }},
		{"device index is 65536", func(s *Superblock) { s.DeviceIndex = 1 << 16 }},
		{"segment bytes is 4097", func(s *Superblock) { s.SegmentBytes = 4097 }},
		{"segment bytes is 4096", func(s *Superblock) { s.SegmentBytes = 4096 }},
		{"first segment offset is 8192", func(s *Superblock) { s.FirstSegment = 8192 }},
		{"device bytes is 1048576", func(s *Superblock) { s.DeviceBytes = 1 << 20 }},
		{"capacity is -1", func(s *Superblock) { s.Capacity = -1 }},
		{"devices it was made with is 65", func(s *Superblock) { s.MadeCount = MaxDevices }},
		{"devices given up is 1025", func(s *Superblock) { s.GivenUp = make([]uint16, MaxGivenUp+1) }},
		{"device given up is 4, must be above 4", func(s *Superblock) { s.GivenUp = []uint16{4, 4} }},
		{"device given up is 3, must be above 4", func(s *Superblock) { s.GivenUp = []uint16{1, 4, 3} }},
		{"device bytes is -1", func(s *Superblock) { s.DeviceBytes = -1 }},
		{"year of creation is 1", func(s *Superblock) {
			*s = Superblock{Sequence: 1, DeviceCount: 1, SegmentBytes: 1 << 20, FirstSegment: 1 << 20, DeviceBytes: 1 << 30}
		}},
	} {
		s := sampleSuperblock()
		c.edit(&s)
		page := []byte("untouched")
		err := s.Encode(page)
		assert.ErrorIs(t, err, skep.Invalid)
		assert.ErrorContains(t, err, c.text)
		assert.Equal(t, "untouched", string(page))
	}
}

func TestHeaderLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		edit func(*Header)
	}{
		{"generation is 0", func(h *Header) { h.Generation = 0 }},
		{"devices is 0", func(h *Header) { h.Devices = nil }},
		{"devices is 65", func(h *Header) { h.Devices = make([]Slot, 65) }},
		{"position is 3", func(h *Header) { h.Position = 3 }},
		{"segment is 5, must be 21", func(h *Header) { h.Segment = 5 }},
		{"device 0 twice", func(h *Header) { h.Devices[2].Device = 0 }},
		{"copies is 5", func(h *Header) { h.Copies = 5 }},
		{"flags is 2", func(h *Header) { h.Flags = 2 }},
		{"segment bytes is 0", func(h *Header) { h.SegmentBytes = 0 }},
	} {
		h := sampleHeader()
		c.edit(&h)
		err := h.Encode(make([]byte, PageSize))
		assert.ErrorIs(t, err, skep.Invalid)
		assert.ErrorContains(t, err, c.text)
	}
}

func TestChooseSuperblock(t *testing.T) {
	t.Parallel()
	at := func(seq uint64, edit ...func(*Superblock)) []byte {
		s := sampleSuperblock()
		s.Sequence = seq
		for _, f := range edit {
			f(&s)
		}
		return superblockPage(t, s)
	}
	torn := at(9)
	clear(torn[512:1024])
	torn[200] ^= 0xff
	another := at(3)
	le.PutUint32(another[offFormat:], FormatVersion+1)
	sealPage(another, 0)
	blank := make([]byte, PageSize)

	for _, c := range []struct {
		name string
		a, b []byte
		copy int
		seq  uint64
		want skep.Kind
	}{
		{"freshly made", at(1), at(1), 0, 1, 0},
		{"a newer", at(3), at(2), 0, 3, 0},
		{"b newer", at(3), at(4), 1, 4, 0},
		{"a torn", torn, at(2), 1, 2, 0},
		{"b torn", at(2), torn, 0, 2, 0},
		{"b not written yet", at(1), blank, 0, 1, 0},
		{"both torn", torn, torn, 0, 0, skep.Damaged},
		{"blank and torn", blank, torn, 0, 0, skep.Damaged},
		{"torn and blank", torn, blank, 0, 0, skep.Damaged},
		{"blank device", blank, blank, 0, 0, skep.Foreign},
		{"another format beside ours", at(9), another, 0, 0, skep.Version},
		{"another format beside blank", blank, another, 0, 0, skep.Version},
		{"two stores", at(1), at(2, func(s *Superblock) { s.Store[0]++ }), 0, 0, skep.Foreign},
		{"two devices", at(1), at(2, func(s *Superblock) { s.Device[0]++ }), 0, 0, skep.Foreign},
		{"one number, two contents", at(1), at(1, func(s *Superblock) { s.DeviceCount++ }), 0, 0, skep.Damaged},
		{"short", at(1), blank[:512], 0, 0, skep.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, i, err := ChooseSuperblock(c.a, c.b)
			if c.want != 0 {
				assert.Equal(t, c.want, skep.KindOf(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.copy, i)
			assert.Equal(t, c.seq, s.Sequence)
		})
	}
}

// Every single flipped bit of a page is detected.
func TestPageBitFlips(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		page   []byte
		decode func([]byte) error
	}{
		"superblock": {superblockPage(t, sampleSuperblock()), func(p []byte) error { _, err := DecodeSuperblock(p); return err }},
		"header":     {headerPage(t, sampleHeader()), func(p []byte) error { _, err := DecodeHeader(p); return err }},
	} {
		require.NoError(t, c.decode(c.page), name)
		for bit := range 8 * PageSize {
			c.page[bit/8] ^= 1 << (bit % 8)
			err := c.decode(c.page)
			want := skep.Damaged
			if bit/8 < 8 {
				want = skep.Foreign // the magic
			}
			if skep.KindOf(err) != want {
				t.Fatalf("%s: bit %d flipped: %v, want %v", name, bit, err, want)
			}
			c.page[bit/8] ^= 1 << (bit % 8)
		}
	}
}
