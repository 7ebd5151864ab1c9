package loan

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
)

// Keeper borrows at a socket for as long as it lasts: when a lender has ended, of the next one
// that lends there.
type Keeper struct {
	o    BorrowerOptions
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	loan   *Loan // the one there is, or the last one
	lost   int64
	closed error // of a loan that could not be given back
}

// Keep is Borrow, and again a retry after each end of a lender, until Close. The first time
// there has to be a lender.
func Keep(o BorrowerOptions, retry time.Duration) (*Keeper, error) {
	if retry <= 0 {
		return nil, skep.Invalidf(opBorrow, "retry", retry, "more than 0")
	}
	l, err := Borrow(o)
	if err != nil {
		return nil, err
	}
	k := &Keeper{o: l.o, stop: make(chan struct{}), done: make(chan struct{}), loan: l}
	go k.keep(retry)
	return k, nil
}

// keep waits for the end of each loan. One that could not be given back is the last: this
// process is to end.
func (k *Keeper) keep(retry time.Duration) {
	defer close(k.done)
	for l := k.loan; ; {
		select {
		case <-k.stop:
			k.end(l.Close())
			return
		case <-l.Done():
		}
		why := l.Err()
		if err := l.Close(); err != nil {
			k.end(err)
			return
		}
		k.o.Log.Warn("a lender of GPU memory is gone: its blocks come from behind", "socket", k.o.Socket, "err", why)
		k.mu.Lock()
		k.lost++
		k.mu.Unlock()
		if l = k.again(retry); l == nil {
			return
		}
		k.o.Log.Info("GPU memory is borrowed again", "socket", k.o.Socket, "lender", l.welcome.Name)
	}
}

// again borrows as soon as there is a lender. nil: Close was called.
func (k *Keeper) again(retry time.Duration) *Loan {
	t := time.NewTicker(retry)
	defer t.Stop()
	for {
		select {
		case <-k.stop:
			return nil
		case <-t.C:
			if l, err := Borrow(k.o); err == nil {
				k.mu.Lock()
				k.loan = l
				k.mu.Unlock()
				return l
			}
		}
	}
}

func (k *Keeper) end(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = err
}

// Close gives everything back. NotReleased when the tier cannot let go of units: this process
// should end. To be called once.
func (k *Keeper) Close() error {
	close(k.stop)
	<-k.done
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed
}

// KeeperStatus is how a borrower stands with the lender of a socket.
type KeeperStatus struct {
	Lender string // the last one's name
	Units  int    // that may be used now
	Epoch  uint64 // of the agreement about them
	Lost   int64  // lenders that ended
}

// Status is how it stands now.
func (k *Keeper) Status() KeeperStatus {
	k.mu.Lock()
	l, lost := k.loan, k.lost
	k.mu.Unlock()
	units, epoch := l.Units()
	return KeeperStatus{l.welcome.Name, units.Len(), epoch, lost}
}

var (
	loanLabels    = []string{"socket", "lender"}
	descLoanUnits = prometheus.NewDesc("skep_gpu_loan_units", "Units of a lender's arena that this process may use.", loanLabels, nil)
	descLoanEpoch = prometheus.NewDesc("skep_gpu_loan_epoch", "Number of the agreement with a lender.", loanLabels, nil)
	descLoanLost  = prometheus.NewDesc("skep_gpu_loan_lenders_lost_total", "Lenders that ended while this process borrowed from them.", loanLabels[:1], nil)
)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(out chan<- prometheus.Metric) {
	s := k.Status()
	out <- prometheus.MustNewConstMetric(descLoanUnits, prometheus.GaugeValue, float64(s.Units), k.o.Socket, s.Lender)
	out <- prometheus.MustNewConstMetric(descLoanEpoch, prometheus.GaugeValue, float64(s.Epoch), k.o.Socket, s.Lender)
	out <- prometheus.MustNewConstMetric(descLoanLost, prometheus.CounterValue, float64(s.Lost), k.o.Socket)
}
