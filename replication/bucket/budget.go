package bucket

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/skepkv/skep"
)

// Budget bounds what a node sends to the bucket and fetches from it. Looks at the bucket, deletions and calls that are
// made again are paid by what is sent and fetched later; the first look of each process is beyond it.
type Budget struct {
	Rate     int64 // bytes a second, sent; 0: as many as go
	SendADay int64 // bytes; 0: any
	LoadADay int64 // bytes; 0: any
	MoneyDay float64
	Prices   Prices
}

// Prices are of one call, and of a byte that leaves the bucket, in the unit of Budget.MoneyDay. Prices of what is
// stored are bounded by Options.MaxBytes.
type Prices struct {
	Write float64 // of one call that puts, and of each thousand names of one that lists
	Read  float64 // of one that gets
	Byte  float64 // fetched
}

func (b *Budget) validate() error {
	const op = "bucket"
	for name, v := range map[string]float64{"money a day": b.MoneyDay, "price of a write": b.Prices.Write,
		"price of a read": b.Prices.Read, "price of a byte": b.Prices.Byte} {
		if !(v >= 0) || v > 1e6 {
			return skep.Invalidf(op, name, v, "0 to 1e6")
		}
	}
	bytes := map[string]int64{"rate": b.Rate, "bytes sent a day": b.SendADay, "bytes fetched a day": b.LoadADay}
	for name, v := range bytes {
		if v < 0 {
			return skep.Invalidf(op, name, v, "0 or more")
		}
	}
	if b.MoneyDay > 0 && b.Prices == (Prices{}) {
		return skep.Invalidf(op, "prices", "none", "some, where money is bounded")
	}
	return nil
}

// A day's budget comes by the second, and up to an hour of it is saved. There is none at the start: a server that is
// started again and again sends and fetches no more. But its first look is made whatever is left, for without it
// nothing can be deleted, and what that owes ends with the process: each start costs a listing, and the indexes of all
// objects.
const (
	day   = 24 * time.Hour
	saved = time.Hour
)

// purse is one bound; nil: none.
type purse struct {
	aSecond float64
	most    float64 // that is saved
	has     float64 // below 0: it is owed
	at      time.Time
}

func newPurse(aDay float64) *purse {
	if aDay <= 0 {
		return nil
	}
	return &purse{aSecond: aDay / day.Seconds(), most: aDay / day.Seconds() * saved.Seconds(), at: time.Now()}
}

// may says whether that much may be spent now. What costs more than is ever saved is paid by what comes later.
func (p *purse) may(n float64, now time.Time) bool {
	if p == nil || n <= 0 {
		return true
	}
	p.has = min(p.most, p.has+p.aSecond*max(0, now.Sub(p.at).Seconds()))
	p.at = now
	return p.has >= min(n, p.most)
}

func (p *purse) spend(n float64) {
	if p != nil {
		p.has -= n
	}
}

// budget is what is left of a Budget.
type budget struct {
	of   Budget
	pace *rate.Limiter

	mu                sync.Mutex
	sent, load, money *purse
}

func newBudget(b Budget) *budget {
	out := &budget{of: b, pace: rate.NewLimiter(rate.Inf, 0), sent: newPurse(float64(b.SendADay)),
		load: newPurse(float64(b.LoadADay)), money: newPurse(b.MoneyDay)}
	if b.Rate > 0 {
		out.pace = rate.NewLimiter(rate.Limit(b.Rate), paceStep)
	}
	return out
}

// take says whether so many bytes and so much money may be spent; spend: and spends both, or neither.
func (b *budget) take(bytes *purse, n int64, money float64, spend bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !bytes.may(float64(n), now) || !b.money.may(money, now) {
		return false
	}
	if spend {
		bytes.spend(float64(n))
		b.money.spend(money)
	}
	return true
}

// canSend says whether an object of so many bytes may be put.
func (b *budget) canSend(n int64) bool { return b.take(b.sent, n, b.of.Prices.Write, false) }

// send pays for an object of so many bytes that is about to be put.
func (b *budget) send(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent.spend(float64(n))
	b.money.spend(b.of.Prices.Write)
}

// mayLoad says whether so many bytes may be fetched in one call, and pays for it.
func (b *budget) mayLoad(n int64) bool { return b.take(b.load, n, b.get(n), true) }

// canLoad is mayLoad that pays nothing.
func (b *budget) canLoad(n int64) bool { return b.take(b.load, n, b.get(n), false) }

// canList says whether a look at the bucket may be paid for.
func (b *budget) canList() bool { return b.take(nil, 0, b.of.Prices.Write, false) }

func (b *budget) get(n int64) float64 { return b.of.Prices.Read + float64(n)*b.of.Prices.Byte }

// owe pays for calls that are made whatever is left: what is sent and fetched later waits for it.
func (b *budget) owe(writes, reads int, loaded int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.load.spend(float64(loaded))
	b.money.spend(float64(writes)*b.of.Prices.Write + float64(reads)*b.of.Prices.Read + float64(loaded)*b.of.Prices.Byte)
}

const paceStep = 1 << 20

// wait waits until so many bytes may go by the rate.
func (b *budget) wait(ctx context.Context, n int64) error {
	for ; n > 0 && b.pace.Limit() != rate.Inf; n -= paceStep {
		if err := b.pace.WaitN(ctx, int(min(n, paceStep))); err != nil {
			return &skep.Error{Op: "bucket", Kind: skep.Deadline, Field: "rate", Value: fmt.Sprint(b.of.Rate), Err: err}
		}
	}
	return nil
}
