package sink

import "sync"

// chunkSizes are the sizes of chunks: the n-th chunk of a batch has the n-th size, later ones the last. So a
// thousand partitions with a record each cost four megabytes, and one with megabytes gets them in large pieces.
// A record that fits none gets a chunk of exactly its size, which is not kept.
const (
	chunk0 = 4 << 10
	chunk1 = 16 << 10
	chunk2 = 64 << 10
)

// keepBatches bounds the empty batches that are kept.
const keepBatches = 256

// pool keeps chunks and batches for their next use. What it keeps is bounded by keep bytes; what is out is
// bounded by the window.
type pool struct {
	keep int

	mu      sync.Mutex // guards the fields below
	held    int
	chunks  [3][][]byte
	batches []*Batch
}

func chunkSize(class int) int {
	return [...]int{chunk0, chunk1, chunk2}[class]
}

// chunk returns an empty chunk with room for n bytes, to be the nth of its batch.
func (p *pool) chunk(n, nth int) []byte {
	class := min(nth, len(p.chunks)-1)
	for class < len(p.chunks) && chunkSize(class) < n {
		class++
	}
	if class == len(p.chunks) {
		return make([]byte, 0, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := &p.chunks[class]
	if k := len(*list); k > 0 {
		c := (*list)[k-1]
		*list = (*list)[:k-1]
		p.held -= cap(c)
		return c[:0]
	}
	return make([]byte, 0, chunkSize(class))
}

// batch returns an empty batch.
func (p *pool) batch(topic string, partition int32) *Batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := &Batch{}
	if k := len(p.batches); k > 0 {
		b, p.batches = p.batches[k-1], p.batches[:k-1]
		p.held -= 8 * cap(b.seqs)
	}
	b.Topic, b.Partition = topic, partition
	return b
}

// put takes back a batch whose fate is known. One that had a try without a definite answer is left to the garbage
// collector: a connection that was given up may still be reading it.
func (p *pool) put(b *Batch) {
	if b.open {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range b.chunks {
		for class := range p.chunks {
			if cap(c) == chunkSize(class) && p.held+cap(c) <= p.keep {
				p.held += cap(c)
				p.chunks[class] = append(p.chunks[class], c)
			}
		}
	}
	clear(b.chunks)
	*b = Batch{chunks: b.chunks[:0], seqs: b.seqs[:0], routes: b.routes[:0]}
	if n := 8 * cap(b.seqs); p.held+n <= p.keep && len(p.batches) < keepBatches {
		p.held += n
		p.batches = append(p.batches, b)
	}
}
