//go:build !iouring

package doctor

// BuiltWithIOUring says whether this program can use io_uring at all.
const BuiltWithIOUring = false
