package segio

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// headerReaders is how many headers of a drive are read at once.
const headerReaders = 32

// ReadHeaders reads the headers of the given segments of a drive, many at once. visit is called from
// several goroutines; err is the drive's, of kind Deadline or DeviceFailed, with no header, or says
// what is wrong with the page.
func ReadHeaders(ctx context.Context, d Drive, store segment.StoreID, segments []uint32, timeout time.Duration,
	visit func(seg uint32, h *segment.Header, err error)) {
	var wg sync.WaitGroup
	next := make(chan uint32, headerReaders)
	for range min(headerReaders, len(segments)) {
		wg.Go(func() {
			page := device.AlignedBuffer(layout.PageSize)
			for seg := range next {
				if err := read(ctx, d.Dev, page, d.Offset(seg), timeout); err != nil {
					page = device.AlignedBuffer(layout.PageSize) // a drive may still write to the other
					visit(seg, nil, err)
					continue
				}
				h, err := segment.DecodeHeader(page)
				if err == nil {
					err = h.Expect(store, d.ID, seg)
				}
				visit(seg, &h, err)
			}
		})
	}
	for _, seg := range segments {
		next <- seg
	}
	close(next)
	wg.Wait()
}

// ReadHeader reads one header, whosever it is. err is the drive's, of kind Deadline or DeviceFailed; wrong
// says what is wrong with the page.
func ReadHeader(ctx context.Context, d Drive, seg uint32, timeout time.Duration) (h segment.Header, wrong, err error) {
	page := device.AlignedBuffer(layout.PageSize)
	if err := read(ctx, d.Dev, page, d.Offset(seg), timeout); err != nil {
		return h, nil, err
	}
	h, wrong = segment.DecodeHeader(page)
	return h, wrong, nil
}

// WriteHeader is the write of a segment's header. Error: Invalid.
func WriteHeader(d Drive, h *segment.Header) (*device.Op, error) {
	page := device.AlignedBuffer(layout.PageSize)
	if err := h.Encode(page); err != nil {
		return nil, err
	}
	return &device.Op{Kind: device.Write, Bufs: [][]byte{page}, Offset: d.Offset(h.Segment)}, nil
}
