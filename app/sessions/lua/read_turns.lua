-- ARGV: 5 and 6 the most that `turns` reads.
return {'ok', turns(ARGV[5], ARGV[6])}
