package segio

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

// copies is how many superblocks a device has.
const copies = 2

// WriteDurably writes aligned bytes at an offset of a device and flushes it.
type WriteDurably func(ctx context.Context, buf []byte, off int64) error

// Superblocks are the copies of a device's superblock as they were read.
type Superblocks struct{ pages []byte }

// ReadSuperblocks reads a device's superblocks. Errors, under op, by kind: Foreign for what is too
// small for them, DeviceFailed. After an error the memory read into may be the drive's still.
func ReadSuperblocks(ctx context.Context, op string, dev device.Device, path string) (Superblocks, error) {
	if dev.Size() < copies*layout.PageSize {
		return Superblocks{}, &skep.Error{Op: op, Kind: skep.Foreign, Field: path, Value: fmt.Sprintf("%d bytes", dev.Size()), Limit: "a device of a store"}
	}
	return readFirst(ctx, op, dev, path, copies)
}

// readFirst reads a device's first pages.
func readFirst(ctx context.Context, op string, dev device.Device, path string, pages int) (Superblocks, error) {
	buf := device.AlignedBuffer(pages * layout.PageSize)
	if err := device.ReadAt(ctx, dev, buf, 0); err != nil {
		return Superblocks{}, &skep.Error{Op: op, Kind: skep.DeviceFailed, Field: path, Err: err}
	}
	return Superblocks{buf}, nil
}

// page is one copy.
func (b Superblocks) page(i int) []byte { return b.pages[i*layout.PageSize : (i+1)*layout.PageSize] }

// Choose gives the superblock that counts. Errors: ChooseSuperblock's.
func (b Superblocks) Choose() (segment.Superblock, error) {
	sb, _, err := segment.ChooseSuperblock(b.page(0), b.page(1))
	return sb, err
}

// Damaged are the numbers of the copies that do not verify.
func (b Superblocks) Damaged() (list []int) {
	for i := range copies {
		if _, err := segment.DecodeSuperblock(b.page(i)); err != nil {
			list = append(list, i)
		}
	}
	return list
}

// ReadSuperblock reads the superblock of a device that counts. Errors by kind: ReadSuperblocks', and
// those of a device of nobody, of a newer program, and of one that is damaged.
func ReadSuperblock(ctx context.Context, dev device.Device, path string) (segment.Superblock, error) {
	const op = "open device"
	both, err := ReadSuperblocks(ctx, op, dev, path)
	if err != nil {
		return segment.Superblock{}, err
	}
	sb, err := both.Choose()
	if err != nil {
		return sb, &skep.Error{Op: op, Kind: skep.KindOf(err), Field: path, Err: err}
	}
	return sb, nil
}

// PeekSuperblock reads a file's superblock without opening it as a device.
func PeekSuperblock(path string) (segment.Superblock, error) {
	pages, err := peek(path, 0, copies*layout.PageSize)
	if err != nil {
		return segment.Superblock{}, err
	}
	return Superblocks{pages}.Choose()
}

// PeekOwner reads, without opening it as a device, who owns one.
func PeekOwner(path string) (segment.Owner, bool) {
	page, err := peek(path, segment.OwnerOffset, layout.PageSize)
	if err != nil {
		return segment.Owner{}, false
	}
	o, err := segment.DecodeOwner(page)
	return o, err == nil
}

// WriteOwner writes on a device who owns it.
func WriteOwner(ctx context.Context, write WriteDurably, o *segment.Owner) error {
	buf := device.AlignedBuffer(layout.PageSize)
	if err := o.Encode(buf); err != nil {
		return err
	}
	return write(ctx, buf, segment.OwnerOffset)
}

func peek(path string, off int64, n int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, n)
	_, err = f.ReadAt(buf, off)
	return buf, err
}

// CheckBlank refuses a device that holds something: in its first pages anything, behind them and at its end the marks
// of file systems and RAIDs that leave those zero. Errors, of operation "create device", by kind: Foreign, Invalid for
// one that has no room for superblocks, DeviceFailed.
func CheckBlank(ctx context.Context, dev device.Device, path string) error {
	const op = "create device"
	if n := dev.Size(); n < beyondFirst {
		return skep.Invalidf(op, "size of "+path, n, fmt.Sprintf("more than %d, which superblocks take", beyondFirst))
	}
	first, err := readFirst(ctx, op, dev, path, layout.SuperblockPages)
	if err != nil {
		return err
	}
	if segment.Blank(first.pages) {
		whose, err := whoseMark(ctx, op, dev, path)
		if whose == "" {
			return err
		}
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: path, Value: whose,
			Limit: "nobody's; if nothing on it is needed, wipefs -a " + path + " takes the mark off"}
	}
	what := "data that is not skep's"
	switch sb, err := first.Choose(); {
	case err == nil:
		what = "store " + sb.Store.String()
	case skep.KindOf(err) == skep.Version:
		what = "a store of another format"
	}
	return &skep.Error{Op: op, Kind: skep.Foreign, Field: path, Value: what,
		Limit: "blank in its first 64 KiB; if nothing on it is needed, dd if=/dev/zero of=" + path +
			" bs=64K count=1 makes it so"}
}

// WriteSuperblocks writes both copies of a device's superblock, one after the other, so that a torn
// write leaves one whole.
func WriteSuperblocks(ctx context.Context, write WriteDurably, sb *segment.Superblock) error {
	for i := range copies {
		if err := WriteSuperblock(ctx, write, sb, i); err != nil {
			return err
		}
	}
	return nil
}

// WriteSuperblock writes copy i.
func WriteSuperblock(ctx context.Context, write WriteDurably, sb *segment.Superblock, i int) error {
	page := device.AlignedBuffer(layout.PageSize)
	if err := sb.Encode(page); err != nil {
		return err
	}
	return write(ctx, page, int64(i)*layout.PageSize)
}

// Wipe makes a device nobody's.
func Wipe(ctx context.Context, write WriteDurably) error {
	return write(ctx, device.AlignedBuffer(layout.SuperblockPages*layout.PageSize), 0)
}

// IsUnused says whether a file holds nothing of a store that was ever in use: nothing behind
// the place of superblocks, and there at most those of a making, whole or torn.
func IsUnused(ctx context.Context, path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for off := int64(0); ; {
		if off >= layout.SuperblockPages*layout.PageSize {
			next, more := nextData(f, off)
			if !more {
				return true, nil
			}
			off = max(off, next)
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n, err := f.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			return false, err
		}
		rest := buf[:n]
		if off == 0 {
			for i := 0; i < copies && len(rest) >= layout.PageSize; i++ {
				if !freshSuperblock(rest[:layout.PageSize]) {
					return false, nil
				}
				rest = rest[layout.PageSize:]
			}
		}
		if !segment.Blank(rest) {
			return false, nil
		}
		if err == io.EOF {
			return true, nil
		}
		off += int64(n)
	}
}

// freshSuperblock says whether a page is a superblock as a making writes it, or what a crash
// left of one.
func freshSuperblock(page []byte) bool {
	if segment.Blank(page[:512]) {
		return true
	}
	sb, err := segment.DecodeSuperblock(page)
	return err == nil && sb.Sequence == 1 || skep.KindOf(err) == skep.Damaged && err != nil
}
