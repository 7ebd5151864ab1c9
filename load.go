package skep

import (
	"context"
	"errors"
	"io"
	"time"
)

// closeWithin is how long Load waits for drives to let go of the destinations when ctx has ended.
const closeWithin = 10 * time.Second

// Load restores r and returns when every chunk has been delivered and all destinations are the caller's again. each is called
// with every chunk, one at a time, misses included; nil where nobody wants to know. What each is lent (Chunk.Data) is given
// back when it returns. Its first error ends the restore and is returned.
//
// It waits for what Restore and Session.Next wait for, until ctx ends, and then up to ten seconds for drives to let go of
// the destinations.
//
// Errors: those of Restore, Next and each; NotReleased where a drive still writes to a destination, around
// (errors.Is) what else went wrong.
func Load(ctx context.Context, st Restorer, r *RestoreRequest, each func(*Chunk) error) (err error) {
	s, err := st.Restore(ctx, r)
	if err != nil {
		return err
	}
	err = Drain(ctx, s, each)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	if left := s.Close(end); left != nil {
		err = besides(err, left)
	}
	return err
}

// besides is what err says and left, of Close: of kind NotReleased where left says that, whatever err's is. It is
// both for errors.Is and errors.As.
func besides(err, left error) error {
	joined := errors.Join(err, left)
	if !errors.Is(left, NotReleased) || KindOf(joined) == NotReleased {
		return joined
	}
	return &Error{Op: "load", Kind: NotReleased, Field: "destinations", Value: "a drive's", Err: joined}
}

// Drain calls each with every chunk that the session delivers, as Load does, and leaves the session open: claims go on. nil
// says that Next has delivered io.EOF. After an error, of Next or of each, destinations are still the session's.
func Drain(ctx context.Context, s Session, each func(*Chunk) error) error {
	into := make([]Chunk, 16)
	for {
		n, err := s.Next(ctx, into)
		var first error
		for i := range into[:n] {
			if first == nil && each != nil {
				first = each(&into[i])
			}
			into[i].Release()
		}
		clear(into[:n])
		switch {
		case first != nil:
			return first
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
