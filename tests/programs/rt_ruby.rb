# Ruby: objects under a compacting collector, threads, fibers, a generator half way, a file half
# read, a pipe between threads, Marshal, and a child process afterwards.
require 'digest'
require 'zlib'

$stdout.sync = true

def check(what, expected, seen)
  return if expected == seen

  puts "FAIL: #{what}: expected #{expected.inspect}, saw #{seen.inspect}"
  exit! 1
end

def digest(table)
  Digest::SHA256.hexdigest(Marshal.dump(table.sort))
end

def churn
  kept = []
  30_000.times { |i| kept << "item #{i}" * 3 if (i % 50).zero? || "garbage #{i}".empty? }
  check('kept strings', ['item 0' * 3, 'item 29950' * 3], [kept.first, kept.last])
end

table = (0...15_000).to_h { |i| [i, "value #{i * i}"] }
before = digest(table)
packed = Zlib::Deflate.deflate(Marshal.dump(table))
symbols = (0...2_000).map { |i| :"symbol_#{i}" }
numbers = Random.new(42)
drawn = numbers.dup
tasks, answers = Queue.new, Queue.new
workers = Array.new(4) do
  Thread.new do
    while (task = tasks.pop) != :end
      answers << [task, Digest::SHA256.hexdigest(task.to_s)]
    end
  end
end
ticks = 0
ticker = Thread.new { loop { sleep 0.005; ticks += 1 } }
reader, writer = IO.pipe
echo = Thread.new { reader.each_line.map(&:chomp) }
writer.puts 'before'
squares = Enumerator.new { |yielder| n = 0; loop { yielder << (n += 1)**2 } }
check('squares', [1, 4, 9], [squares.next, squares.next, squares.next])
fiber = Fiber.new { |x| x = Fiber.yield(x * 2) while true }
check('fiber', 2, fiber.resume(1))
File.write('lines', (1..1000).map { |i| "#{i}-line\n" }.join)
file = File.open('lines', 'r+')
check('first line', "1-line\n", file.gets)
churn
GC.start
GC.compact

puts 'READY'
check('stdin', 1, $stdin.sysread(1).bytesize)

check('table', before, digest(table))
check('packed', before, digest(Marshal.load(Zlib::Inflate.inflate(packed))))
check('symbols', 1_999, symbols.index(:symbol_1999))
check('random numbers', drawn.rand(1 << 60), numbers.rand(1 << 60))
500.times { |task| tasks << task }
500.times do
  task, seen = answers.pop
  check('answer of a thread', Digest::SHA256.hexdigest(task.to_s), seen)
end
4.times { tasks << :end }
workers.each { |worker| check('end of a thread', worker, worker.join(20)) }
was = ticks
sleep 0.1
check('a thread that ticks', true, ticks > was)
ticker.kill
check('squares', [16, 25], [squares.next, squares.next])
check('fiber', 14, fiber.resume(7))
check('line by line', (2..1000).map { |i| "#{i}-line\n" }, file.readlines)
writer.puts 'after'
writer.close
check('pipe', %w[before after], echo.value)
churn
GC.start
GC.compact
check('table after compaction', before, digest(table))
check('required afterwards', '{"a":[1,2]}', (require 'json'; JSON.generate({ a: [1, 2] })))
check('output of a child', "child\n", `echo child`)
pid = fork { exit! 7 }
check('status of a fork', 7, Process.wait2(pid).last.exitstatus)
puts 'PASS'
