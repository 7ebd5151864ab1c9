package segment

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
)

// Only a block that shares its page names a slot of it, and ends within it.
func TestPlacesFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pages uint32
		bytes int64
		sub   uint8
		fits  bool
	}{
		{1, 512, 0, true},
		{1, 512, 7, true},
		{1, 513, 7, false}, // it would end past the page
		{1, layout.MaxPacked, 1, true},
		{1, layout.MaxPacked + 1, 1, false}, // it has the page for itself
		{2, 512, 1, false},
		{2, 8192, 0, true},
	} {
		r := Record{Pages: c.pages, Parts: []RecordPart{{Size: c.bytes}}, Copies: []layout.Location{{Page: 1, Sub: c.sub}}}
		require.Equal(t, c.fits, r.PlacesFit(), "%+v", c)
	}
}

// A record and its head have one name.
func TestRecordID(t *testing.T) {
	t.Parallel()
	r := Record{Seq: 7, Instance: 3, SaltTag: SaltTag{1}}
	require.Equal(t, RecordID{Seq: 7, Instance: 3, SaltTag: SaltTag{1}}, r.ID())
	h := Head{Seq: 7, Instance: 3, SaltTag: SaltTag{1}}
	require.Equal(t, r.ID(), h.ID())
}
